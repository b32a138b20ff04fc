"""Rules on the nodes of a pod besides those of the node itself: other pods, ports and volumes."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from functools import cached_property
from typing import NamedTuple

from dra.claims.reasons import Obstacle, Reason
from dra.common.resources import Obj, ObjectKey, at
from dra.pods.company import Check, find_domains, preference, seeking_check, shunning_check
from dra.pods.nodefit import Misfit, MisfitReason, NodeFacts, find_misfit, find_short
from dra.pods.pods import Amounts, Pod, WantedPorts
from dra.pods.residents import Hosts, Residents
from dra.pods.selectors import ALONE
from dra.pods.volumes import OpenVolumes, Volume, VolumeClaim, Volumes, reaches

_BETA = "failure-domain.beta.kubernetes.io"
_TODAY = "topology.kubernetes.io"
_ZONES = tuple(f"{domain}/{kind}" for domain in (_BETA, _TODAY) for kind in ("zone", "region"))
MOST_VOLUMES_COMPARED = 100_000
"""Most comparisons of claims with volumes that have no claim, for a decision: some 100 ms.

The claims that would be compared with more are left to kube-scheduler.
"""

_SEPARATOR = "__"
"""Stands between the zones of a volume that is in several."""


def find_obstacle(pod: Pod, volumes: Volumes) -> Obstacle | None:
    """Obstacle of a PersistentVolumeClaim that keeps ``pod`` from every node; None without one.

    The claim is missing, is being deleted, or lacks its volume.
    """
    if not volumes.listed:
        return None
    for name, owned in pod.volume_claims:
        claim = volumes.claims.get((pod.key[0], name))
        if claim is not None:
            problem = _problem(claim, pod, volumes, owned=owned)
        else:
            problem = "is not made yet by Kubernetes" if owned else "does not exist: create it"
        if problem:
            return Obstacle(Reason.VOLUME_CLAIM, f"PersistentVolumeClaim {name} {problem}")
    return None


class VolumeFit:
    """The nodes on which the volumes of one pod are or could be; good until anything changes."""

    def __init__(self, pod: Pod, volumes: Volumes, residents: Residents) -> None:
        self._pod = pod
        self._volumes = volumes
        self._residents = residents
        claims = [*volumes.claims_of(pod)]
        found = (volumes.volumes.get(claim.volume) for claim in claims if claim.bound)
        self._bound = [volume for volume in found if volume is not None]
        late = (claim for claim in claims if volumes.is_late(claim))
        self._late = sorted(late, key=lambda c: (c.wish.size, c.key))
        self._shared: dict[str, str] = {}
        self._taken = ""
        self._open: dict[ObjectKey, OpenVolumes | None] = {}
        self._left = MOST_VOLUMES_COMPARED
        for claim in claims:
            for other in residents.users(claim.key):
                self._meet(claim, other)

    def find_misfit(self, node: NodeFacts) -> Misfit | None:
        """Misfit of the pod's volumes and ``node``; None when all of them can be used there."""
        text = self._taken or self._elsewhere(node) or self._unmade(node)
        return Misfit(MisfitReason.VOLUME, text) if text else None

    def _meet(self, claim: VolumeClaim, other: Pod) -> None:
        """Take into account that ``other``, which is on a node, uses ``claim`` too."""
        if other.key == self._pod.key:
            return
        if claim.for_one_pod:
            self._taken = f"PersistentVolumeClaim {claim.key[1]} is ReadWriteOncePod and in use"
        place = self._residents.find(other.key)
        if self._volumes.is_late(claim) and place is not None:
            self._shared[claim.key[1]] = place[0]

    def _elsewhere(self, node: NodeFacts) -> str:
        for volume in self._bound:
            if not reaches(volume, node) or not _in_zone(volume, node):
                return "volume node affinity does not match"
        for claim in self._late:
            where = claim.selected_node or self._shared.get(claim.key[1], node.name)
            if where != node.name:
                return f"the volume of PersistentVolumeClaim {claim.key[1]} is made elsewhere"
        return ""

    def _unmade(self, node: NodeFacts) -> str:
        """Fault if a claim that waits for a node gets no volume on ``node``; empty if all get one.

        Volumes that claims of other pods may get first do not count.
        """
        if not self._late:
            return ""
        chosen: set[str] = set()
        for claim in self._before(node):
            self._find(claim, node, chosen)
        makes: dict[str, bool] = {}
        for claim in self._late:
            made = bool(claim.selected_node) or not self._find(claim, node, chosen)
            name = claim.wish.class_name
            if made and name not in makes:
                makes[name] = self._can_make(name, node)
            if made and not makes[name]:
                return f"no volume of class {name} for the node"
        return ""

    def _before(self, node: NodeFacts) -> Iterator[VolumeClaim]:
        """The claims of pods that are about to come to ``node``."""
        own = {claim.key for claim in self._late}
        for other in self._residents.on(node.name):
            if not other.node and other.key != self._pod.key:
                for claim in self._volumes.claims_of(other):
                    if self._volumes.is_late(claim) and claim.key not in own:
                        yield claim

    def _find(self, claim: VolumeClaim, node: NodeFacts, chosen: set[str]) -> bool:
        """Choose an existing volume for ``claim``: the one reserved for it, or the smallest.

        Returns False if there is none; True also if there are too many volumes to be compared.
        """
        there = self._there(claim)
        if there is None:
            return True
        found = next((v for v in there.on(node) if v.name not in chosen), None)
        if found is not None:
            chosen.add(found.name)
        return found is not None

    def _there(self, claim: VolumeClaim) -> OpenVolumes | None:
        """The volumes that ``claim`` may be bound to; None where they are too many to be read."""
        if claim.key not in self._open:
            self._open[claim.key] = self._look_up(claim)
        return self._open[claim.key]

    def _look_up(self, claim: VolumeClaim) -> OpenVolumes | None:
        if meant := self._volumes.meant_for(claim):
            return OpenVolumes(meant)
        self._left -= self._volumes.breadth(claim)
        return self._volumes.open_to(claim) if self._left >= 0 else None

    def _can_make(self, class_name: str, node: NodeFacts) -> bool:
        known = self._volumes.classes.get(class_name)
        if known is None or not known.makes:
            return False
        return not known.topologies or any(_allows(term, node) for term in known.topologies)


def _allows(term: Obj, node: NodeFacts) -> bool:
    """True if a term of a class allows volumes where ``node`` is; an empty term allows none."""
    required = at(term, "matchLabelExpressions")
    return bool(required) and all(node.labels.get(r["key"]) in r["values"] for r in required)


def _problem(claim: VolumeClaim, pod: Pod, volumes: Volumes, *, owned: bool) -> str:
    """Reason why a claim cannot be used, in words; "" if it can."""
    if claim.lost:
        return f"has lost its volume {claim.volume}: delete it and create it anew"
    if claim.deleting:
        return "is being deleted"
    if owned and claim.owner != pod.uid:
        return "was not made for this pod: delete it"
    if claim.bound and claim.volume not in volumes.volumes:
        return f"is bound to volume {claim.volume}, which does not exist"
    if not claim.bound and not volumes.is_late(claim):
        return "is not bound to a volume yet"
    return ""


def _in_zone(volume: Volume, node: NodeFacts) -> bool:
    """False if labels of a volume name its zone or region, and the node is in another."""
    if not any(key in node.labels for key in _ZONES):
        return True
    for key in _ZONES:
        if key in volume.labels:
            here = node.labels.get(key, node.labels.get(key.replace(_BETA, _TODAY)))
            if here not in volume.labels[key].split(_SEPARATOR):
                return False
    return True


MOST_COMPARED = 200_000
"""Most comparisons of a pod's terms with groups of pods and nodes, for a decision: some 100 ms.

The terms of a pod that would be compared with more are left to kube-scheduler. Pods that are
decided together share this number.
"""


class _Asked(NamedTuple):
    """A pod, without its terms where they are too many, and the facts that its rules look at.

    ``thought_away``: True for pods whose host ports count as free. ``together``: number of pods
    that are decided at once.
    """

    pod: Pod
    hosts: Hosts
    thought_away: Callable[[Pod], bool]
    together: int


def _volumes(asked: _Asked) -> Iterator[Check]:
    if asked.pod.volume_claims and asked.hosts.volumes.listed:
        yield VolumeFit(asked.pod, asked.hosts.volumes, asked.hosts.residents).find_misfit


def _host_ports(asked: _Asked) -> Iterator[Check]:
    pod, residents = asked.pod, asked.hosts.residents
    wanted = WantedPorts(pod.needs.host_ports)

    def check(node: NodeFacts) -> Misfit | None:
        there = residents.on(node.name)
        others = (o for o in there if o.key != pod.key and not asked.thought_away(o))
        port = wanted.find_conflict(other.needs for other in others)
        return None if port is None else Misfit(MisfitReason.HOST_PORT, f"host port {port} taken")

    if pod.needs.host_ports:
        yield check


def _affinity(asked: _Asked) -> Iterator[Check]:
    pod, residents, company = asked.pod, asked.hosts.residents, asked.pod.needs.company
    if company.affinity:
        yield seeking_check(pod, residents, asked.hosts.facts)
    if company.anti_affinity or residents.may_shun(pod.key[0]):
        yield shunning_check(pod, residents, asked.hosts.facts, together=asked.together)


def _spread(asked: _Asked) -> Iterator[Check]:
    pod, hosts = asked.pod, asked.hosts
    if spread := pod.needs.company.hard_spread:
        for domains in find_domains(pod, spread, hosts.residents, hosts.facts):
            yield domains.find_misfit


_RULES: tuple[Callable[[_Asked], Iterator[Check]], ...] = (
    _volumes,
    _host_ports,
    _affinity,
    _spread,
)
"""Rules for a pod besides those of the node itself, in the order in which a misfit is told."""


class Rules:
    """The rules for one pod, worked out when first asked for; good until anything changes."""

    def __init__(
        self, pod: Pod, hosts: Hosts, thought_away: Callable[[Pod], bool], *, together: int
    ) -> None:
        self._pod = pod
        self._thought_away = thought_away
        self._hosts = hosts
        self.together = together
        """Number of pods that are decided together, this one included."""

    @property
    def key(self) -> Hashable:
        """A value that is equal for pods that are alike and to which equal rules apply."""
        labels, namespace = frozenset(self._pod.labels.items()), self._pod.key[0]
        versions = self._hosts.residents.version, self._hosts.volumes.version
        return self._pod.needs, self._pod.volume_claims, namespace, labels, *versions

    def find_misfit(self, node: NodeFacts) -> Misfit | None:
        """Misfit of the pod and ``node``; None when the rules allow the node."""
        found = (check(node) for check in self._checks)
        return next((misfit for misfit in found if misfit is not None), None)

    @property
    def prefers(self) -> bool:
        """True if the pod likes some nodes better than others."""
        return self._pod.needs.company.prefers

    def best(self, nodes: Sequence[str]) -> str:
        """The node that the pod likes best, of ``nodes`` that are equal otherwise."""
        facts = self._hosts.facts
        return self._preference([facts[name] for name in nodes]).name

    @cached_property
    def _read(self) -> Pod:
        """The pod; without its terms if they would take too many comparisons."""
        pod = self._pod
        spread_over = len(pod.needs.company.spread) * len(self._hosts.facts)
        compared = self._hosts.residents.breadth(pod) + spread_over
        if compared * self.together <= MOST_COMPARED:
            return pod
        return replace(pod, needs=replace(pod.needs, company=ALONE))

    @cached_property
    def _preference(self) -> Callable[[Sequence[NodeFacts]], NodeFacts]:
        return preference(self._read, self._hosts.residents, self._hosts.facts)

    @cached_property
    def _checks(self) -> list[Check]:
        asked = _Asked(self._read, self._hosts, self._thought_away, self.together)
        return [check for rule in _RULES for check in rule(asked)]


def find_rules(
    pod: Pod,
    hosts: Hosts,
    *,
    thought_away: Callable[[Pod], bool] = lambda _: False,
    together: int = 1,
) -> Rules | None:
    """The rules for ``pod``; None where nodes alone decide.

    ``thought_away``: True for pods whose host ports count as free. ``together``: number of pods
    that are decided at once.
    """
    needs = pod.needs
    company = needs.company  # ``ALONE`` where it has no terms
    if needs.host_ports or company is not ALONE or pod.volume_claims:
        return Rules(pod, hosts, thought_away, together=together)
    if hosts.residents.may_shun(pod.key[0]):
        return Rules(pod, hosts, thought_away, together=together)
    return None


def may_preempt(pod: Pod, other: Pod) -> bool:
    """True if ``other`` may be ended for ``pod``; a pod that is not bound takes no room yet."""
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

    ``ports`` are the host ports of ``pod``, made once by callers that ask about many nodes.
    """
    there = hosts.residents.on(node.name)
    lower = [other for other in there if may_preempt(pod, other)]
    if not lower:
        return None
    wanted = ports or WantedPorts(pod.needs.host_ports)
    higher = (o for o in there if o.key != pod.key and not may_preempt(pod, o))
    if wanted.find_conflict(o.needs for o in higher) is not None:
        return None
    taken = hosts.used(node.name, without=pod.key)
    asked = [name for name, amount in pod.needs.requests.items() if amount]
    used = {name: taken.get(name, 0) for name in asked}  # others may take dozens of resources
    for other in lower:
        _add(used, other.needs.requests, sign=-1)
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
