"""Gangs for the tests of the controller: pods with a claim each, and problems of theirs."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from controller.cluster.cluster import Cluster
from controller.queue.searches import alike
from dra.allocator.allocate import Allocator
from dra.allocator.problem import Problem, examine
from dra.claims.classes import generated_classes
from dra.claims.reader import Reader
from dra.common.resources import Obj
from dra.gangs.decision import GangDecision, GangOutcome, Questions, Trial
from tests.controller.helpers.objects import DRIVER, claim, pod, request, versioned
from tests.dra.gpus import A100


def member(gang: str, number: int, profile: str = "3g.20gb") -> tuple[Obj, Obj]:
    """A claim and the pod that has it."""
    name = f"{gang}-{number}"
    return claim(name, request("r", f"mig-{profile}")), pod(name, name)


def problems(known: Cluster, *members: tuple[Obj, Obj]) -> list[Problem]:
    """Problems of pending pods, each with its own claim."""
    for body in generated_classes(DRIVER, [p.name for p in A100.profiles]):
        known.set_class(versioned(body))
    found = []
    for asked, body in members:
        known.set_claim(versioned(asked))
        known.set_pod(versioned(body))
        reader = Reader(DRIVER, known.fleet.kinds, known.classes)
        posed = examine(known.pods["default", body["metadata"]["name"]], known, reader).found
        assert isinstance(posed, Problem), posed
        found.append(posed)
    return found


def decision(known: Cluster, candidates: Sequence[Problem], need: int) -> GangDecision:
    def kind(problem: Problem) -> Hashable | None:
        return alike(problem)

    allocator = Allocator(known.fleet, known.hosts)
    questions = Questions(lambda _: allocator, kind=kind)
    return GangDecision(candidates, need, Trial(known.fleet, known.hosts), questions)


def decided(known: Cluster, candidates: Sequence[Problem], need: int) -> GangOutcome:
    found = decision(known, candidates, need).go_on()
    assert found is not None
    return found
