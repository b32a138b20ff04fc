"""Room that kube-scheduler makes for a pod by ending others, of lower priority, first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby

from dra.allocator.places import Places
from dra.allocator.problem import Problem
from dra.pods.pods import Pod, WantedPorts
from dra.pods.rules import find_rules, find_victims, may_preempt

_GROUPS = 8
"""Number of groups of nodes tried one after another; then all others are tried together."""

RoomCost = tuple[int, int, int]
"""The highest priority that ends, their sum, and how many, as kube-scheduler compares nodes."""


def with_room_made(problem: Problem, places: Places) -> Problem:
    """``problem`` as if kube-scheduler had made room on all nodes; itself where it makes none."""
    pod, hosts = problem.pod, places.hosts
    lowest = hosts.residents.lowest_priority
    if not pod.needs.preempts or pod.node or problem.pins or lowest >= pod.priority:
        return problem
    rules = find_rules(
        pod,
        hosts,
        thought_away=lambda other: may_preempt(pod, other),
        together=1 if problem.rules is None else problem.rules.together,
    )
    return replace(problem, rules=rules, makes_room=True)


def cost_of_room(problem: Problem, places: Places, node: str) -> RoomCost | None:
    """Cost of the pods that end on ``node`` for that of ``problem``; None where none would."""
    facts = places.hosts.facts.get(node)
    if facts is None or node in problem.excluded:
        return None
    ports = WantedPorts(problem.pod.needs.host_ports)
    victims = find_victims(
        problem.pod, facts, places.hosts, delegated=places.delegated, ports=ports
    )
    return _cost(victims) if victims else None


def in_order_of_cost(costs: Mapping[str, RoomCost], *, nominated: str) -> Iterator[Sequence[str]]:
    """Ever other nodes, those first on which kube-scheduler would make room."""
    if nominated in costs:  # victims are ending there already
        yield [nominated]
        return
    ranked = sorted(costs, key=lambda name: (costs[name], name))
    alike = [[*group] for _, group in groupby(ranked, key=costs.__getitem__)]
    yield from alike[:_GROUPS]
    if rest := [name for group in alike[_GROUPS:] for name in group]:
        yield rest


def _cost(victims: Sequence[Pod]) -> RoomCost:
    priorities = [victim.priority for victim in victims]
    return max(priorities), sum(p + 2**31 for p in priorities), len(victims)
