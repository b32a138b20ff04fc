"""Decisions for pods for which kube-scheduler has to end others, of lower priority, first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby

from dra.allocator.allocate import Allocator
from dra.allocator.problem import Decision, Problem
from dra.pods.hostports import WantedPorts
from dra.pods.pods import Pod
from dra.pods.preemption import find_victims, may_preempt
from dra.pods.rules import find_rules

_GROUPS = 8
"""Number of groups of nodes tried one after another; then all others are tried together."""

_OTHERS = "others would have to end there"

_Cost = tuple[int, int, int]


def decide_with_preemption(problem: Problem, allocator: Allocator) -> Decision | None:
    """Decision where kube-scheduler would make room, on the node that it would choose.

    None where the pod may not preempt, where its claims tie it to nodes, or where no node will do.
    """
    for attempt in attempts_with_preemption(problem, allocator):
        decision = allocator.decide(attempt)
        if decision is not None:
            return decision
    return None


def attempts_with_preemption(problem: Problem, allocator: Allocator) -> Iterator[Problem]:
    """``problem`` as if room were made, on ever other nodes, the best first; none if in vain."""
    easier = with_room_made(problem, allocator)
    if easier is not problem and allocator.decide(easier) is not None:  # for the resources alone
        yield from _attempts(easier, allocator)


def with_room_made(problem: Problem, allocator: Allocator) -> Problem:
    """``problem`` as if kube-scheduler had made room on all nodes; itself where it makes none."""
    pod, hosts = problem.pod, allocator.hosts
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


def _attempts(problem: Problem, allocator: Allocator) -> Iterator[Problem]:
    """``problem`` on ever other nodes, those first that kube-scheduler would choose."""
    pod, hosts, nodes = problem.pod, allocator.hosts, allocator.fleet.nodes.keys()
    costs: dict[str, _Cost] = {}
    ports = WantedPorts(pod.needs.host_ports)
    for name in nodes:
        facts = hosts.facts.get(name)
        if facts is None or name in problem.excluded:
            continue
        victims = find_victims(pod, facts, hosts, delegated=allocator.delegated, ports=ports)
        if victims:
            costs[name] = _cost(victims)
    for group in _groups(costs, nominated=pod.nominated):
        others = dict.fromkeys(nodes - {*group}, _OTHERS)
        yield replace(problem, excluded={**others, **problem.excluded})


def _groups(costs: dict[str, _Cost], *, nominated: str) -> Iterator[Sequence[str]]:
    if nominated in costs:  # victims are ending there already
        yield [nominated]
        return
    ranked = sorted(costs, key=lambda name: (costs[name], name))
    alike = [[*group] for _, group in groupby(ranked, key=costs.__getitem__)]
    yield from alike[:_GROUPS]
    if rest := [name for group in alike[_GROUPS:] for name in group]:
        yield rest


def _cost(victims: Sequence[Pod]) -> _Cost:
    """As kube-scheduler compares nodes: the highest priority that ends, their sum, how many."""
    priorities = [victim.priority for victim in victims]
    return max(priorities), sum(p + 2**31 for p in priorities), len(victims)
