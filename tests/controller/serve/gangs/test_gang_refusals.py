"""Refusals of gangs, and what ends them."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from controller import times
from controller.cluster.gangs import Gang
from controller.cluster.records import GangRefusal
from controller.queue.refused import Refused
from controller.serve import gangs
from dra.claims.reasons import Obstacle, Reason
from dra.gangs.membership import GangKey, Membership
from dra.pods.pods import Pod, read_pod
from tests.controller.helpers.objects import pod, versioned

FIRST, LAST = (read_pod(versioned(pod(name))) for name in ("a-0", "a-1"))


def refused_for(*hindered: Pod) -> Callable[[Pod], GangRefusal | None]:
    """A gang of two that was refused at second 0, which took a second, as these could not run.

    Returns what finds the refusal that stands for one of its pods.
    """
    clock = [0.0]
    agenda = SimpleNamespace(add_pod=lambda *_, **__: True, waits=lambda _: True)
    world: Any = SimpleNamespace(agenda=agenda, now=lambda: clock[0])
    world.refused = Refused(world.now)
    gang = Gang(Membership(GangKey("gang", "default", "a")), dict.fromkeys((FIRST.key, LAST.key)))
    obstacle = Obstacle(Reason.WAITING_FOR_GANG, "")
    refusal = GangRefusal(obstacle, 0.0, hindered={p.key for p in hindered})
    gangs._keep(world, FIRST, gang, refusal, 1.0)
    clock[0] = times.REFUSAL_DETAILS - 1
    return lambda pod: gangs._standing_refusal(world, pod, gang, 2)[0]


def test_it_ends_once_the_hindered_pod_is_looked_at_however_often_that_is_put_off() -> None:
    stands_for = refused_for(LAST)
    assert stands_for(FIRST) is not None
    for _ in range(5):
        assert stands_for(LAST) is None


def test_it_stands_while_too_few_of_the_others_were_looked_at() -> None:
    stands_for = refused_for(FIRST, LAST)
    for _ in range(5):
        assert stands_for(LAST) is not None
