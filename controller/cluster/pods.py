"""Pods of the mirrored cluster, by name and by claim, charged to the nodes that they go to.

Pods are alike if kube-scheduler gives all of them the same answer. The pods of one owner are alike.
Pods without an owner that wait for another driver too are alike if they are in one namespace and
ask the same of their node, of this driver and of the other driver. Pods of different namespaces are
never alike, so that namespaces neither learn of each other nor mislead each other.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from controller.cluster.claims import KnownClaims
from controller.cluster.decoder import ParsedSpecs
from controller.cluster.gangs import KnownGangs
from controller.cluster.records import Effects, PodRecord
from dra.claims.claims import Claim, made_for
from dra.claims.classes import DeviceClass
from dra.common.cache import BoundedCache, Index
from dra.common.resources import Obj, ObjectKey, at
from dra.pods.pods import Pod, PodNeeds, read_pod, with_claim
from dra.pods.residents import Hosts, Residents
from dra.pods.selectors import Company

_MOST_ALIKE = 10_000
"""Upper bound on the pods whose template is remembered: some hundred bytes each."""

_WHERE = ("nodeSelector", "affinity", "tolerations", "topologySpreadConstraints", "priority")
"""Fields of a pod's spec that restrict its node, without the resources that it takes there."""

MOST_WATCHED = 2_000
"""Upper bound on comparisons of one changed pod with the terms of a namespace's waiting pods.

Terms of equal pods count once. Waiting pods beyond the bound are not found by the change: they are
looked at when room is made, and after a while.
"""


_Watches = dict[str, Index[PodNeeds, ObjectKey]]
"""Waiting pods, by namespace and then by their needs."""


class Watchers:
    """Unbound pods with claims, by the volumes and the other pods that they depend on."""

    def __init__(self, residents: Residents) -> None:
        self._residents = residents
        self._near: _Watches = {}
        self._far: _Watches = {}
        self._of_volumes: Index[ObjectKey, ObjectKey] = Index()

    def change(self, before: Pod | None, pod: Pod | None) -> None:
        """Take a pod that is new (no ``before``), changed, or gone (no ``pod``)."""
        if before is not None:
            self._note(before, waits=False)
        if pod is not None and pod.pending and not pod.node and pod.claims:
            self._note(pod, waits=True)

    def of_company(self, pod: Pod, was: Pod | None = None) -> Iterator[ObjectKey]:
        """Waiting pods whose terms ``pod`` matches now, or matched in its former state ``was``."""
        states = [pod] if was is None or was.labels == pod.labels else [was, pod]
        home = pod.key[0]
        yield from self._watching(states, home, self._near.get(home, Index()))
        for owner, watches in self._far.items():
            yield from self._watching(states, owner, watches)

    def _watching(
        self, states: list[Pod], owner: str, watches: Index[PodNeeds, ObjectKey]
    ) -> Iterator[ObjectKey]:
        left = MOST_WATCHED
        for needs, pods in watches.items():
            left -= _parts(needs.company) * len(states)
            if left < 0:
                return
            if any(self._residents.matters(pod, needs, owner=owner) for pod in states):
                yield from pods

    def of_volume_claim(self, claim: ObjectKey) -> Iterable[ObjectKey]:
        return self._of_volumes.of(claim)

    def of_volumes(self) -> Iterator[ObjectKey]:
        return (pod for _, pods in self._of_volumes.items() for pod in pods)

    def _note(self, pod: Pod, *, waits: bool) -> None:
        namespace = pod.key[0]
        company, volumes = pod.needs.company, self._of_volumes
        if company.requires:
            terms = (*company.affinity, *company.anti_affinity)
            watches = self._near if all(term.at_home for term in terms) else self._far
            known = watches.setdefault(namespace, Index())
            (known.add if waits else known.discard)(pod.needs, pod.key)
            if not len(known):
                del watches[namespace]
        for name, _ in pod.volume_claims:
            (volumes.add if waits else volumes.discard)((namespace, name), pod.key)


def _parts(company: Company) -> int:
    terms = (*company.affinity, *company.anti_affinity)
    return sum(term.parts for term in terms) + sum(s.parts for s in company.hard_spread)


class KnownPods:
    """Pods by namespace and name. Each is charged to its node in ``hosts``."""

    def __init__(
        self,
        hosts: Hosts,
        claims: KnownClaims,
        classes: Mapping[str, DeviceClass],
        effects: Effects,
        specs: ParsedSpecs,
    ) -> None:
        self.by_key: dict[ObjectKey, Pod] = {}
        self._hosts = hosts
        self.watchers = Watchers(hosts.residents)
        self._classes = classes
        self._alike: BoundedCache[str, str] = BoundedCache(_MOST_ALIKE)
        self._claims = claims
        self._effects = effects
        self._specs = specs
        self._of_claim: Index[ObjectKey, ObjectKey] = Index()
        self.records: dict[str, PodRecord] = {}
        self.gangs = KnownGangs(claims.finalizer, effects)

    def record(self, pod: Pod) -> PodRecord:
        """The record of a pod; a missing one is made, and kept unless the pod is gone."""
        known = self.records.get(pod.uid)
        if known is None:
            known, current = PodRecord(pod), self.by_key.get(pod.key)
            if current is not None and current.uid == pod.uid:
                self.records[pod.uid] = known
        return known

    def set(self, obj: Obj) -> None:
        pod = read_pod(obj, self._specs.needs)
        before = self.by_key.get(pod.key)
        if before is not None and before.uid != pod.uid:
            self.remove(pod.key)
            before = None
        self._take(pod if before is None else self._as_made(pod, before), before)

    def adopt(self, claim: Obj) -> None:
        """Give a claim to the pod that it was made for, if the pod's status names none yet."""
        made = made_for(claim)
        metadata = claim["metadata"]
        pod = self.by_key.get((metadata["namespace"], made.pod)) if made else None
        if made and pod and pod.uid == made.uid and pod.claims.get(made.entry, "") is None:
            self._take(with_claim(pod, made.entry, metadata["name"]), pod)

    def _as_made(self, pod: Pod, before: Pod) -> Pod:
        """``pod`` with the adopted claims that its status does not name yet.

        An adopted claim that is gone is left out: another will be made.
        """
        for entry in [e for e, name in pod.claims.items() if name is None]:
            name = before.claims.get(entry)
            if name is not None and (pod.key[0], name) in self._claims.by_key:
                pod = with_claim(pod, entry, name)
        return pod

    def _take(self, pod: Pod, before: Pod | None) -> None:
        self.by_key[pod.key] = pod
        if (record := self.records.get(pod.uid)) is not None:
            record.pod = pod
        self._link(pod.key, before.claim_keys if before else (), pod.claim_keys)
        self.watchers.change(before, pod)
        self.gangs.change(pod.key, pod)
        self._charge(pod, was=before)
        if before is None or not self._is_on_its_way(before, pod):
            self._effects.pods.add(pod.key)
        if pod.node and (before is None or not before.node):
            self._effects.bound.add(pod.key)
        if before is not None and before.live and not pod.live:
            self._effects.claims.update(pod.claim_keys)

    def _is_on_its_way(self, before: Pod, pod: Pod) -> bool:
        """True if the only news is that kube-scheduler is about to bind ``pod`` as we allocated.

        kube-scheduler nominates each pod with claims for its node before it binds the pod
        (feature ``NominatedNodeNameForExpectation``).
        """
        if not pod.nominated:
            return False
        claims = [self._claims.by_key.get(key) for key in pod.claim_keys]
        return (
            all(known is not None and known.claim.allocation is not None for known in claims)
            and pod.nominated == self._claims.node_of(pod.claim_keys)
            and _beside_nomination(before) == _beside_nomination(pod)
        )

    def remove(self, key: ObjectKey) -> None:
        pod = self.by_key.pop(key, None)
        if pod is None:
            return
        self._link(key, pod.claim_keys, ())
        self.watchers.change(pod, None)
        self.gangs.change(key, None)
        self._place(pod, "", was=pod)
        self._effects.claims.update(pod.claim_keys)
        self._effects.gone_pods.append(self.records.pop(pod.uid, PodRecord(pod)))

    def of_claim(self, claim: ObjectKey) -> list[Pod]:
        return [self.by_key[key] for key in self._of_claim.of(claim)]

    def touch(self, claim: ObjectKey) -> None:
        """Have the pods of a claim looked at after a change of the claim."""
        self.recharge(claim)
        self._effects.pods.update(self._of_claim.of(claim))

    def recharge(self, claim: ObjectKey) -> None:
        """Charge the pods of a claim to the node that its allocation sends them to now."""
        for key in self._of_claim.of(claim):
            self._charge(self.by_key[key])

    def end_charge(self, key: ObjectKey) -> None:
        """Stop counting what an allocated pod asks for against the node of its allocation.

        For a pod that is not bound: other pods may use that room.
        """
        pod = self.by_key[key]
        if node := self.sent_to(pod):
            self.record(pod).charge_ended = node
            self._charge(pod)

    def _charge(self, pod: Pod, *, was: Pod | None = None) -> None:
        """Charge a pod to its node; before it is bound, to that of its allocation for a while."""
        node = pod.node if pod.live else ""
        if not pod.node:
            node = self.sent_to(pod)
            record = self.records.get(pod.uid) if node else None
            if record is not None and node == record.charge_ended:
                node = ""
            elif record is not None:
                record.charge_ended = ""
        self._place(pod, node, was=was)

    def sent_to(self, pod: Pod) -> str:
        """The node that was decided for a pod that is not bound; empty without one.

        A claim that is reserved for other pods only does not count.
        """
        if pod.node or not pod.pending:
            return ""
        return self._claims.node_of(pod.claim_keys, pod.uid)

    def _place(self, pod: Pod, node: str, *, was: Pod | None) -> None:
        residents = self._hosts.residents
        version = residents.version
        self._made_room(self._hosts.place(pod, node), was=was)
        if residents.version != version:
            self._effects.pods.update(self.watchers.of_company(pod, was))

    def _made_room(self, node: str, *, was: Pod | None) -> None:
        """Note that a pod left ``node``; if it was bound there, kube-scheduler may judge anew."""
        if node:
            self._effects.room.add(node)
        if node and was is not None and was.node == node:
            self._effects.nodes.add(node)

    def _link(
        self, pod: ObjectKey, before: tuple[ObjectKey, ...], after: tuple[ObjectKey, ...]
    ) -> None:
        for claim in before:
            if claim not in after:
                self._of_claim.discard(claim, pod)
        for claim in after:
            self._of_claim.add(claim, pod)

    def template(self, pod: Pod) -> str:
        """A key that is equal for pods that are alike; the pod's UID if it is like no other."""
        if pod.template != pod.uid or len(pod.claims) <= 1:
            return pod.template
        known = self._alike.find(pod.uid)
        if known is None:
            known = self._digest(pod)
            if known is None:
                return pod.uid
            self._alike.put(pod.uid, known)
        return known

    def _digest(self, pod: Pod) -> str | None:
        """Template of a pod without an owner; None while one of its claims is missing."""
        found = [self._claims.by_key.get(key) for key in pod.claim_keys]
        claims = [known for known in found if known is not None]
        if None in pod.claims.values() or len(claims) < len(found):
            return None
        if all(self._may_be_ours(known.claim) for known in claims):
            return pod.uid
        asked = sorted(msgspec.json.encode(known.obj["spec"], order="sorted") for known in claims)
        spec, needs = pod.obj["spec"], pod.needs
        where = [spec.get(field) for field in _WHERE]
        takes = (needs.requests, needs.host_ports, pod.volume_claims)
        said = msgspec.json.encode((pod.key[0], where, takes, asked), order="sorted")
        return hashlib.sha256(said).hexdigest()

    def _may_be_ours(self, claim: Claim) -> bool:
        named = (choice.class_name for r in claim.requests for choice in r.choices)
        found = (self._classes.get(name) for name in named if name)
        return all(known is None or known.names_us for known in found)


def _beside_nomination(pod: Pod) -> tuple[Obj, ...]:
    """Metadata, spec and status of a pod, without ``nominatedNodeName``."""
    status = {
        k: v for k, v in at(pod.obj, "status", default={}).items() if k != "nominatedNodeName"
    }
    return pod.obj["metadata"], at(pod.obj, "spec", default={}), status
