"""Nodes, and what pods that run there or are about to take of them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from dra.common.resources import ObjectKey
from dra.pods.company.residents import Residents
from dra.pods.nodefit import NodeFacts
from dra.pods.podneeds import Amounts
from dra.pods.pods import Pod
from dra.pods.volumes.known import Volumes

_NOTHING: Amounts = MappingProxyType({})


class Hosts:
    """Node facts and charges. A pod is charged to one node at a time.

    ``residents`` knows the same pods by what they mean for others. ``volumes`` bind them to nodes.
    """

    def __init__(self) -> None:
        self.residents = Residents()
        self.volumes = Volumes()
        self._facts: dict[str, NodeFacts] = {}
        self.facts: Mapping[str, NodeFacts] = MappingProxyType(self._facts)
        """Every known node by name."""
        self._used: dict[str, dict[str, int]] = {}
        self._charged: dict[ObjectKey, tuple[str, Amounts]] = {}

    def set_node(self, facts: NodeFacts) -> bool:
        """Take a node's facts; True when they changed."""
        if self._facts.get(facts.name) == facts:
            return False
        self._facts[facts.name] = facts
        return True

    def drop_node(self, name: str) -> None:
        """Forget a node; its pods stay charged to it."""
        self._facts.pop(name, None)

    def used(self, node: str, *, without: ObjectKey | None = None) -> Amounts:
        """Resources that pods take of ``node`` together, ``without`` the charge of one of them."""
        used = self._used.get(node, _NOTHING)
        charge = self._charged.get(without) if without is not None else None
        if charge is None or charge[0] != node:
            return used
        return {name: amount - charge[1].get(name, 0) for name, amount in used.items()}

    def place(self, pod: Pod, node: str) -> str:
        """Put a pod on a node ("" for none); returns a node where that made room, or ""."""
        self.residents.place(pod, node)
        return self.charge(pod.key, node, pod.needs.requests)

    def charge(self, pod: ObjectKey, node: str, requests: Amounts) -> str:
        """Charge a pod to a node ("" for none); returns a node where that made room, or ""."""
        before = self._charged.pop(pod, None)
        if before is not None:
            self._book(before[0], before[1], sign=-1)
        if node:
            self._charged[pod] = (node, requests)
            self._book(node, requests, sign=1)
        if before is None or (before[0] == node and before[1] == requests):
            return ""
        return before[0]

    def _book(self, node: str, requests: Amounts, *, sign: int) -> None:
        used = self._used.setdefault(node, {})
        for name, amount in requests.items():
            left = used.get(name, 0) + sign * amount
            if left:
                used[name] = left
            else:
                used.pop(name, None)
        if not used:
            del self._used[node]
