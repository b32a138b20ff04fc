"""Decisions that take long are made in parts: others are served in between, and each has an end."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.cluster.cluster import Cluster
from controller.queue import searches
from dra.allocator.allocate import Allocator, OngoingDecision
from dra.allocator.problem import Outcome
from tests.controller.allocator.devices.test_single import clusters
from tests.controller.allocator.test_what_if import ASKED
from tests.controller.helpers.bench import Bench
from tests.controller.helpers.deciding import problem
from tests.controller.helpers.objects import (
    claim,
    filled,
    first_available,
    mignode,
    pod,
    request,
)

NODES = [f"node-{number}" for number in range(8)]
ROOT = "resource.kubernetes.io/pcieRoot"
PAIR = [request("a", "mig-3g.20gb"), request("b", "mig-2g.10gb")]
TIGHT = [(0, 2), (0, 3), (1, 2), (1, 3), (0, 1, 2), (0, 1, 3), (0, 2, 3), (1, 2, 3)]
"""Memory slices that leave room for each of ``PAIR``, and not for both."""

PART_SECONDS = 0.1

asked = {
    **ASKED,
    "either": claim(
        "c", first_available("r", ("a", "mig-7g.40gb", {"count": 2}), ("b", "mig-3g.20gb", {}))
    ),
    "of a root": claim("c", *PAIR, constraints=[{"matchAttribute": ROOT}]),
}


@settings(max_examples=15, deadline=None)
@given(known=clusters(), name=st.sampled_from([*asked]), steps=st.integers(1, 40))
def test_a_decision_in_parts_is_that_in_one_go(known: Cluster, name: str, steps: int) -> None:
    found = problem(known, asked[name])
    allocator = Allocator(known.fleet, known.hosts)
    ongoing, outcome = OngoingDecision([found], allocator), None
    while outcome is None:
        outcome = ongoing.go_on(steps=steps)
    assert outcome == allocator.outcome(found)


class Slow:
    """A bench on whose nodes each part of a decision takes ``PART_SECONDS``, and a step at most."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, free: int = 3) -> None:
        monkeypatch.setattr(searches, "PART_STEPS", 1)
        self.bench = Bench(*NODES)
        for number, name in enumerate(NODES):
            held = [s for s in range(3) if number >> s & 1] if number < free else TIGHT[number]
            self.bench.cluster.set_mignode(mignode(name, filled(0, *held, name=name)))
        self.bench.run()
        self.parts: list[str] = []
        self.steps = 0
        go_on = OngoingDecision.go_on

        def part(ongoing: OngoingDecision, **steps: Any) -> Outcome | None:
            self.parts.append(ongoing.problem.pod.key[1])
            self.bench.time += PART_SECONDS
            return go_on(ongoing, **steps)

        monkeypatch.setattr(OngoingDecision, "go_on", part)

    def wants(self, name: str, *requests: Any) -> None:
        self.bench.claim(claim(name, *requests))
        self.bench.pod(pod(name, name))

    def step(self) -> None:
        """One piece of work, of which there is an end."""
        self.steps += 1
        assert self.steps < 1000
        self.bench.engine.absorb()
        self.bench.engine.work()

    @property
    def ongoing(self) -> dict[Any, Any]:
        return self.bench.world.decisions._ongoing


def test_who_comes_meanwhile_is_served_before_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Slow(monkeypatch)
    slow.wants("hard", *PAIR)
    while not slow.ongoing:
        slow.step()
    slow.wants("easy")
    slow.bench.run()
    first = slow.parts.index("easy")
    assert 0 < first < len(slow.parts) - 1
    assert slow.parts[first + 1 :].count("hard") > 1
    assert slow.bench.devices("easy")
    assert slow.bench.devices("hard")
    assert not slow.ongoing


def test_who_takes_long_is_not_starved_by_those_who_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Slow(monkeypatch)
    slow.wants("hard", *PAIR)
    while not slow.ongoing:
        slow.step()
    served = 0
    while not slow.bench.devices("hard"):
        slow.wants(f"easy-{served}")
        before = len(slow.parts)
        while not slow.bench.devices(f"easy-{served}"):
            slow.step()
        assert slow.parts[before:].count("hard") <= 1, "nobody waits for more than one part"
        slow.bench.delete_pod(f"easy-{served}")
        served += 1
    assert served > 2


def test_what_is_taken_meanwhile_is_not_given_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Slow(monkeypatch, free=2)
    slow.wants("hard", *PAIR)
    while slow.parts.count("hard") < 2 + 1:
        slow.step()
    # Both nodes that would have done are searched; who comes takes the better one of them.
    for name in ("first", "second"):
        slow.bench.cluster.set_mignode(mignode("node-0", filled(0, *range(7))))
        slow.wants(name, request("r", "mig-1g.5gb"))
    slow.bench.run()
    assert slow.bench.devices("hard")
    assert slow.bench.node_of("hard") == "node-1"


def test_of_many_hard_ones_a_few_are_worked_on_and_all_come_to_an_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(searches, "MOST", 2)
    slow = Slow(monkeypatch, free=0)
    names = [f"hard-{number}" for number in range(6)]
    for number, name in enumerate(names):
        slow.wants(name, *PAIR, request(f"more-{number}"))
    most = 0
    for _ in range(400):
        slow.step()
        most = max(most, len(slow.ongoing))
    assert most == 2
    assert all(slow.bench.recorder.reasons(name) for name in names)
    assert not slow.bench.world.decisions.are_ongoing
