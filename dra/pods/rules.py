"""Rules that decide beside the node itself where a pod may go: others on it, ports and volumes."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

from dra.pods.company.affinity import Affinity
from dra.pods.company.preferences import Preferences
from dra.pods.company.residents import Residents
from dra.pods.company.spread import find_domains
from dra.pods.company.terms import ALONE
from dra.pods.hostports import TakenPorts
from dra.pods.hosts import Hosts
from dra.pods.nodefit import Misfit, MisfitReason, NodeFacts
from dra.pods.pods import Pod
from dra.pods.volumes.fit import VolumeFit

MOST_COMPARED = 50_000
"""Groups of pods, all terms of a pod together, that it is compared with for a decision.

The terms of a pod that would be compared with more are left to kube-scheduler.
"""


class Rule(Protocol):
    """Something that keeps a pod from nodes."""

    def find_misfit(self, node: NodeFacts) -> Misfit | None:
        """Misfit of the pod and ``node``; None when it can."""


@dataclass(frozen=True, slots=True)
class _HostPorts:
    pod: Pod
    residents: Residents
    thought_away: Callable[[Pod], bool]

    def find_misfit(self, node: NodeFacts) -> Misfit | None:
        there = self.residents.on(node.name)
        others = (o for o in there if o.key != self.pod.key and not self.thought_away(o))
        taken = TakenPorts(port for other in others for port in other.needs.host_ports)
        port = taken.find_conflict(self.pod.needs.host_ports)
        return None if port is None else Misfit(MisfitReason.HOST_PORT, f"host port {port} taken")


class Rules:
    """The rules for one pod, worked out when first asked for; good until anything changes.

    ``key`` is equal for pods that are alike and to which equal rules apply.
    """

    def __init__(self, pod: Pod, hosts: Hosts, thought_away: Callable[[Pod], bool]) -> None:
        self._pod = pod
        self._thought_away = thought_away
        self._hosts = hosts

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
        if self._hosts.residents.breadth(pod) <= MOST_COMPARED:
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
            yield Affinity(pod, residents, nodes)
        if spread := company.hard_spread:
            yield from find_domains(pod, spread, residents, nodes)


def find_rules(
    pod: Pod, hosts: Hosts, *, thought_away: Callable[[Pod], bool] = lambda _: False
) -> Rules | None:
    """The rules for ``pod``; None where nodes alone decide.

    Pods that are ``thought_away`` take no host ports.
    """
    needs = pod.needs
    company = needs.company  # ``ALONE`` where it has no terms
    if needs.host_ports or company is not ALONE or pod.volume_claims:
        return Rules(pod, hosts, thought_away)
    return Rules(pod, hosts, thought_away) if hosts.residents.may_shun(pod.key[0]) else None
