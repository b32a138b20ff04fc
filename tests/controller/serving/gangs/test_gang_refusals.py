"""Refusals of gangs, and what ends them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from controller.cluster.known_gangs import Gang
from controller.queue.room import Room
from controller.serving.gangs.refusals import DETAILS_SECONDS, Refusal, Refusals
from dra.claims.reasons import Obstacle, Reason
from dra.gangs.membership import GangKey, Membership
from dra.pods.pods import Pod, read_pod
from tests.controller.helpers.objects import pod, versioned

FIRST, LAST = (read_pod(versioned(pod(name))) for name in ("a-0", "a-1"))


def refused_for(*hindered: Pod) -> tuple[Refusals, Gang]:
    """A gang of two that was refused at second 0, which took a second, as these could not run."""
    agenda: Any = SimpleNamespace(
        add_pod=lambda *_, **__: True, pods=SimpleNamespace(waits=lambda _: True)
    )
    line: Any = SimpleNamespace()
    clock = iter([0.0, *[0.5] * 3, *[DETAILS_SECONDS - 1] * 3])
    refusals = Refusals(agenda, line, Room(), now=lambda: next(clock))
    gang = Gang(Membership(GangKey("gang", "default", "a")), dict.fromkeys((FIRST.key, LAST.key)))
    refusal = Refusal(Obstacle(Reason.WAITING_FOR_GANG, ""), hindered={p.key for p in hindered})
    refusals.keep(gang, refusal, FIRST, seconds=1.0)
    return refusals, gang


def test_it_ends_once_the_hindered_pod_is_looked_at_however_often_that_is_put_off() -> None:
    refusals, gang = refused_for(LAST)
    assert refusals.find(FIRST, gang, 2) is not None
    for _ in range(5):
        assert refusals.find(LAST, gang, 2) is None


def test_it_stands_while_too_few_of_the_others_were_looked_at() -> None:
    refusals, gang = refused_for(FIRST, LAST)
    for _ in range(5):
        assert refusals.find(LAST, gang, 2) is not None
