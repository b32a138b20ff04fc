"""Waiters: a pod that is served by itself, or a gang, which is served as one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from controller.queue.overtaking.line import Urgency, urgency
from dra.allocator.problem import Problem
from dra.gangs.membership import GangKey
from dra.pods.pods import Pod


@dataclass(frozen=True, slots=True)
class Waiter:
    """Somebody who waits for room: ``name`` in words, and the ``place`` in the line."""

    uid: str
    name: str
    place: Urgency


def pod_waiter(pod: Pod) -> Waiter:
    """A pod that waits by itself."""
    return Waiter(pod.uid, f"pod {pod}", urgency(pod))


def gang_uid(gang: GangKey) -> str:
    """UID of a gang as a waiter."""
    return f"gang:{gang}"


def gang_waiter(gang: GangKey, lacking: Sequence[Problem], need: int) -> Waiter:
    """A gang that waits for ``need`` of its pods, of which ``lacking`` are in their order.

    Its place is that of the last of those: it is as urgent as all of them are, and no older.
    """
    return Waiter(gang_uid(gang), str(gang), urgency(lacking[need - 1].pod))
