"""Places to wait for are looked for in parts, with others in between, and not for ever."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import cast

import pytest

from controller import times
from controller.cluster.cluster import Cluster
from controller.queue import line as waiting_lines
from controller.queue import searches
from controller.queue.line import Need, WaitingLine, pod_waiter
from controller.queue.refused import Refused
from controller.queue.searches import Decisions, alike
from controller.report.report import Reporter
from dra.allocator.allocate import Allocator
from dra.allocator.problem import Problem
from dra.common.resources import ObjectKey
from dra.gangs.decision import Placed, Questions, Trial
from dra.gangs.planning import Planning
from tests.controller.helpers.bench import Bench
from tests.controller.helpers.objects import allocated, claim, cluster, mignode, versioned
from tests.controller.queue.test_held_back import big, for_ever
from tests.controller.serve.gangs.gangs import member, problems

NAMES = [f"node-{number}" for number in range(5)]
DEVICES = ("gpu-0-mig-4g20gb-5-0", "gpu-0-mig-2g10gb-14-4", "gpu-0-mig-1g5gb-19-6")


def busy() -> Cluster:
    """Nodes with ever more slices that somebody has."""
    known = cluster(*NAMES)
    for number, name in enumerate(NAMES):
        known.set_mignode(mignode(name))
        for index, device in enumerate(DEVICES[: 1 + number % 3]):
            held = allocated(claim(f"on-{name}-{index}"), name, device)
            known.set_claim(versioned(held))
    return known


def questions(known: Cluster) -> Questions:
    allocator = Allocator(known.fleet, known.hosts)
    return Questions(lambda _: allocator, kind=alike)


def planning(known: Cluster, candidates: Sequence[Problem], need: int) -> Planning:
    trial = Trial(known.fleet, known.hosts)
    return Planning(candidates, need, trial, questions(known), stays=frozenset())


def waiting_line(known: Cluster, decisions: Decisions) -> WaitingLine:
    allocator = Allocator(known.fleet, known.hosts)
    return WaitingLine(
        known, allocator, cast("Reporter", None), decisions, Refused(lambda: 0.0), now=lambda: 0.0
    )


def devices(placed: Sequence[Placed] | None) -> list[tuple[str, str]]:
    decisions = [p.decision for p in placed or ()]
    return [(d.node, p.device) for d in decisions if d is not None for p in d.picks]


def test_pods_for_whom_there_is_no_place_whatever_ends_have_none() -> None:
    known = busy()
    candidates = problems(known, *(member("a", n, "7g.40gb") for n in range(6)))
    assert planning(known, candidates, 6).go_on() == ()
    assert len(devices(planning(known, candidates, 5).go_on())) == 5


def test_others_are_served_between_the_parts_of_a_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searches, "PART_STEPS", 1)
    bench = Bench(*NAMES)
    for name in NAMES:
        for_ever(bench, name)
    for number in range(35 - len(NAMES) - 1):
        for_ever(bench, f"more-{number:02}")
    big(bench, "big")
    monkeypatch.setattr(waiting_lines, "OVERTAKEN", 0)
    monkeypatch.setattr(times, "OVERTAKEN_ONCE", inf)
    bench.time += 61.0
    go_on = Planning.go_on

    def slowly(plan: Planning, *, steps: float = inf) -> object:
        bench.time += 0.1
        return go_on(plan, steps=steps)

    monkeypatch.setattr(Planning, "go_on", slowly)
    for _ in range(100):
        bench.engine.absorb()
        bench.engine.work()
        if bench.world.decisions.are_ongoing:
            break
    bench.ask("p-small", "small", cpu="10m")
    while not bench.devices("small"):
        assert "NextInLine" not in bench.recorder.reasons("big")
        bench.engine.absorb()
        bench.engine.work()
    for _ in range(50):
        bench.run(seconds=0.2)
    assert "NextInLine" in bench.recorder.reasons("big")


def test_a_plan_that_nobody_goes_on_with_does_not_keep_others_from_theirs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(searches, "PART_STEPS", 1)
    known, decisions = busy(), Decisions(lambda: 0.0)
    first, second = problems(known, member("a", 0), member("b", 0))
    line = waiting_line(known, decisions)

    def plan(posed: Problem) -> object:
        return line._find_places(pod_waiter(posed.pod), Need([posed], 1, None), frozenset())

    def take_turn() -> tuple[object, ObjectKey]:
        turn = decisions.next(idle=True)
        assert turn is not None
        return turn

    assert plan(first) is None
    assert plan(second) is None
    key, leader = take_turn()
    assert leader == first.pod.key
    assert plan(first) is None
    decisions.end_turn(key)
    assert plan(second) is None
    decisions.end_turn(take_turn()[0])
    assert plan(second) is None
    assert take_turn()[1] == second.pod.key


def test_nothing_is_planned_for_claims_that_are_counted() -> None:
    known = busy()
    (posed,) = problems(known, member("a", 0, "1g.5gb"))
    decision = Allocator(known.fleet, known.hosts).decide(posed)
    assert decision is not None
    ref = posed.claims[0].claim.ref
    known.fleet.hold(ref, decision.allocation(ref, known.fleet.driver))
    decisions = Decisions(lambda: 0.0)
    line = waiting_line(known, decisions)
    assert line._find_places(pod_waiter(posed.pod), Need([posed], 1, None), frozenset()) is None
    assert not decisions.are_ongoing
    assert known.fleet.counts(ref.uid)


@pytest.mark.parametrize(
    ("priority", "same", "kept"), [(0, False, True), (0, True, False), (7, True, True)]
)
def test_a_hold_ends_one_of_lower_priority_that_has_what_it_needs(
    priority: int, *, same: bool, kept: bool
) -> None:
    known = cluster(*NAMES[:2])
    members = [member(name, 0, "7g.40gb") for name in ("a", "b")]
    for (_, body), rank in zip(members, (priority, 7), strict=True):
        body["spec"]["priority"] = rank
    first, second = problems(known, *members)
    line = waiting_line(known, Decisions(lambda: 0.0))
    allocator = Allocator(known.fleet, known.hosts)
    one, other = allocator.decide(first), allocator.decide(second)
    assert one is not None
    line.hold_made(first.pod, one, seconds=60.0)
    if not same:
        other = allocator.decide(second)
    assert other is not None
    line.hold_made(second.pod, other, seconds=60.0)
    assert (one.node == other.node) is same
    assert line.is_held_for(second.pod.uid)
    assert line.is_held_for(first.pod.uid) is kept
