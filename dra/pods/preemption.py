"""Pods that kube-scheduler would end to make room for one of higher priority.

As it does: all of lower priority are thought away, and then as many as fit are kept, those of
higher priority and the older first. Only resources and host ports are made free in this way.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from dra.pods.hostports import WantedPorts
from dra.pods.hosts import Hosts
from dra.pods.nodefit import NodeFacts, find_misfit, find_short
from dra.pods.podneeds import Amounts
from dra.pods.pods import Pod


def may_preempt(pod: Pod, other: Pod) -> bool:
    """True if ``other`` may be ended for ``pod``: one that is not bound does not take room yet."""
    return bool(other.node) and other.priority < pod.priority and other.key != pod.key


def find_victims(
    pod: Pod,
    node: NodeFacts,
    hosts: Hosts,
    *,
    delegated: AbstractSet[str] = frozenset(),
    ports: WantedPorts | None = None,
) -> list[Pod] | None:
    """Pods that would be ended on ``node`` for ``pod``; None where that would not be enough.

    ``ports`` are those of ``pod``, for who asks of many nodes.
    """
    wanted = ports or WantedPorts(pod.needs.host_ports)
    there = hosts.residents.on(node.name)
    lower = [other for other in there if may_preempt(pod, other)]
    higher = [o for o in there if o.key != pod.key and not may_preempt(pod, o)]
    taken = hosts.used(node.name, without=pod.key)
    asked = [name for name, amount in pod.needs.requests.items() if amount]
    used = {name: taken.get(name, 0) for name in asked}  # others may take dozens of resources
    for other in lower:
        _add(used, other.needs.requests, sign=-1)

    if not lower or wanted.find_conflict(o.needs for o in higher) is not None:
        return None
    if find_misfit(pod.needs, node, used, delegated=delegated) is not None:
        return None
    victims: list[Pod] = []
    for other in sorted(lower, key=lambda o: (-o.priority, o.created, o.key)):
        _add(used, other.needs.requests, sign=1)
        short = find_short(pod.needs, node, used, delegated=delegated)
        if short or wanted.find_conflict([other.needs]) is not None:
            _add(used, other.needs.requests, sign=-1)
            victims.append(other)
    return victims


def _add(used: dict[str, int], amounts: Amounts, *, sign: int) -> None:
    for name in used:
        used[name] += sign * amounts.get(name, 0)
