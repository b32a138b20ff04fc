"""Rules that decide beside the node itself where a pod may go: others on it, ports and volumes."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Protocol

from dra.pods.company.affinity import Affinity
from dra.pods.company.preferences import Preferences
from dra.pods.company.residents import Residents
from dra.pods.company.spread import find_domains
from dra.pods.company.terms import ALONE
from dra.pods.hostports import WantedPorts
from dra.pods.hosts import Hosts
from dra.pods.nodefit import Misfit, MisfitReason, NodeFacts
from dra.pods.pods import Pod
from dra.pods.volumes.fit import VolumeFit

MOST_COMPARED = 200_000
"""Comparisons of a pod's terms with groups of pods and with nodes for a decision: some 100 ms.

The terms of a pod that would be compared with more are left to kube-scheduler. Pods that are
decided together have that much together.
"""


class Rule(Protocol):
    """Something that keeps a pod from nodes."""

    def find_misfit(self, node: NodeFacts) -> Misfit | None:
        """Misfit of the pod and ``node``; None when it can."""


class _HostPorts:
    def __init__(self, pod: Pod, residents: Residents, thought_away: Callable[[Pod], bool]) -> None:
        self._pod = pod
        self._residents = residents
        self._thought_away = thought_away
        self._wanted = WantedPorts(pod.needs.host_ports)

    def find_misfit(self, node: NodeFacts) -> Misfit | None:
        there = self._residents.on(node.name)
        others = (o for o in there if o.key != self._pod.key and not self._thought_away(o))
        port = self._wanted.find_conflict(other.needs for other in others)
        return None if port is None else Misfit(MisfitReason.HOST_PORT, f"host port {port} taken")


class Rules:
    """The rules for one pod, worked out when first asked for; good until anything changes.

    ``key`` is equal for pods that are alike and to which equal rules apply.
    """

    def __init__(
        self, pod: Pod, hosts: Hosts, thought_away: Callable[[Pod], bool], *, together: int
    ) -> None:
        self._pod = pod
        self._thought_away = thought_away
        self._hosts = hosts
        self.together = together
        """The number of pods that are decided with it, and it."""

    @property
    def key(self) -> Hashable:
        """See above."""
        labels, namespace = frozenset(self._pod.labels.items()), self._pod.key[0]
        versions = self._hosts.residents.version, self._hosts.volumes.version
        return self._pod.needs, self._pod.volume_claims, namespace, labels, *versions

    def find_misfit(self, node: NodeFacts) -> Misfit | None:
        """Misfit of the pod and ``node``; None when it can."""
        found = (rule.find_misfit(node) for rule in self._rules)
        return next((misfit for misfit in found if misfit is not None), None)

    @property
    def prefers(self) -> bool:
        """True if the pod likes some nodes better than others."""
        return self._pod.needs.company.prefers

    def best(self, nodes: Sequence[str]) -> str:
        """The node that the pod likes best of those that are equal otherwise."""
        facts = self._hosts.facts
        return self._preferences.best([facts[name] for name in nodes]).name

    @cached_property
    def _read(self) -> Pod:
        """The pod, without its terms where they are too many for the pods that there are."""
        pod = self._pod
        spread_over = len(pod.needs.company.spread) * len(self._hosts.facts)
        compared = self._hosts.residents.breadth(pod) + spread_over
        if compared * self.together <= MOST_COMPARED:
            return pod
        return replace(pod, needs=replace(pod.needs, company=ALONE))

    @cached_property
    def _preferences(self) -> Preferences:
        return Preferences(self._read, self._hosts.residents, self._hosts.facts)

    @cached_property
    def _rules(self) -> list[Rule]:
        return [*self._apply()]

    def _apply(self) -> Iterator[Rule]:
        pod, company, nodes = self._read, self._read.needs.company, self._hosts.facts
        if pod.volume_claims and self._hosts.volumes.listed:
            yield VolumeFit(pod, self._hosts.volumes, self._hosts.residents)
        if pod.needs.host_ports:
            yield _HostPorts(pod, self._hosts.residents, self._thought_away)
        residents = self._hosts.residents
        if company.affinity or company.anti_affinity or residents.may_shun(pod.key[0]):
            yield Affinity(pod, residents, nodes, together=self.together)
        if spread := company.hard_spread:
            yield from find_domains(pod, spread, residents, nodes)


def find_rules(
    pod: Pod,
    hosts: Hosts,
    *,
    thought_away: Callable[[Pod], bool] = lambda _: False,
    together: int = 1,
) -> Rules | None:
    """The rules for ``pod``; None where nodes alone decide.

    Pods that are ``thought_away`` take no host ports. So many are decided ``together``.
    """
    needs = pod.needs
    company = needs.company  # ``ALONE`` where it has no terms
    if needs.host_ports or company is not ALONE or pod.volume_claims:
        return Rules(pod, hosts, thought_away, together=together)
    if hosts.residents.may_shun(pod.key[0]):
        return Rules(pod, hosts, thought_away, together=together)
    return None
