"""Decision of an allocator for a pod with the claims of a test, or why it cannot."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from controller.cluster.cluster import Cluster
from dra.allocator.allocate import Allocator
from dra.allocator.explain.answers import as_obstacle
from dra.allocator.explain.judge import explain
from dra.allocator.problem import Decision, Problem, examine
from dra.claims.classes import generated_classes
from dra.claims.reader import Reader
from dra.claims.reasons import Obstacle
from dra.common.resources import Obj
from dra.gangs.decision import Questions, Trial
from dra.gangs.planning import Planning
from dra.pods.pods import read_pod
from tests.controller.helpers.objects import DRIVER, pod, versioned
from tests.dra.gpus import A100


def problem(
    known: Cluster, *claims: Obj, labels: Mapping[str, str] | None = None, **spec: Any
) -> Problem:
    """A pending pod that wants ``claims``; its classes are those that the hardware offers."""
    for body in generated_classes(DRIVER, [p.name for p in A100.profiles]):
        known.set_class(versioned(body))
    for body in claims:
        known.set_claim(versioned(body))
    body = versioned(pod("p", *(c["metadata"]["name"] for c in claims), **spec))
    body["metadata"]["labels"] = dict(labels or {})
    known.set_pod(body)
    kinds = known.fleet.kinds
    found = examine(read_pod(body), known, Reader(DRIVER, kinds, known.classes)).found
    assert isinstance(found, Problem), found
    return found


def decide(known: Cluster, *claims: Obj, **spec: Any) -> Decision | None:
    found = problem(known, *claims, **spec)
    return Allocator(known.fleet, known.hosts).decide(found)


def devices(decision: Decision | None) -> list[str]:
    assert decision is not None
    return [p.device for p in decision.picks]


def plan(found: Problem, allocator: Allocator) -> Decision | None:
    """Devices that would be held back for a problem."""
    trial, questions = Trial(allocator.fleet, allocator.hosts), Questions(lambda _: allocator)
    placed = Planning([found], 1, trial, questions, stays=frozenset()).go_on()
    return placed[0].decision if placed else None


def why(known: Cluster, *claims: Obj, **spec: Any) -> Obstacle:
    found = problem(known, *claims, **spec)
    allocator = Allocator(known.fleet, known.hosts)
    outcome = allocator.outcome(found)
    assert outcome.decision is None
    return as_obstacle(explain(found, allocator, given_up=outcome.given_up))
