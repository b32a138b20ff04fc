"""The cluster as the controller knows it: indexes over the objects of the API server.

Owned by one thread. Every change leaves in :class:`Effects` what it may have consequences for.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field

from api.errors import ApiError
from controller.cluster.spec_cache import Sharing
from controller.cluster.trimming import Trimmer
from dra.allocator.fleet.fleet import Fleet
from dra.allocator.scoring.geometry_index import Markets
from dra.cel.kinds import Kinds
from dra.claims.allocation import Allocation
from dra.claims.claims import Claim, read_claim
from dra.claims.classes import DeviceClass, read_class
from dra.common.resources import RESOURCE_CLAIMS, Obj
from dra.gpu.inventory import ClaimRef
from dra.gpu.mignode import from_mignode
from dra.pods.hosts import Hosts
from dra.pods.nodefit import read_node
from dra.pods.pods import Key, Pod, read_pod

_log = logging.getLogger(__name__)

_REMEMBERED = 2000
"""Allocations that count as demand at a start; older ones would hardly weigh."""


@dataclass(frozen=True, slots=True, eq=False)
class KnownClaim:
    """A claim with the object that it was read from."""

    claim: Claim
    obj: Obj


@dataclass(frozen=True, slots=True)
class TakenBack:
    """An allocation of ours that somebody else removed."""

    claim: Key
    node: str


@dataclass(slots=True)
class Effects:
    """What changes call for, collected until somebody takes it.

    ``room``: something that did not fit may fit now. ``classes``: the generated DeviceClasses may
    be out of date. ``nodes`` are those that kube-scheduler may judge differently now; what is gone
    is named by UID.
    """

    pods: set[Key] = field(default_factory=set)
    claims: set[Key] = field(default_factory=set)
    nodes: set[str] = field(default_factory=set)
    gone_pods: set[str] = field(default_factory=set)
    gone_claims: set[str] = field(default_factory=set)
    taken_back: list[TakenBack] = field(default_factory=list)
    room: bool = False
    classes: bool = False


class Cluster:
    """Nodes, GPUs, pods, claims and classes, by name and by what they refer to."""

    def __init__(self, driver: str, finalizer: str, kinds: Kinds) -> None:
        self.driver = driver
        self.finalizer = finalizer
        self.markets = Markets()
        self.fleet = Fleet(driver, kinds, self.markets)
        self.hosts = Hosts()
        self.pods: dict[Key, Pod] = {}
        self.claims: dict[Key, KnownClaim] = {}
        self.classes: dict[str, DeviceClass] = {}
        self.class_objects: dict[str, Obj] = {}
        self._pods_of: dict[Key, set[Key]] = {}
        self._claim_of_uid: dict[str, Key] = {}
        self._writing: dict[str, Allocation | None] = {}
        self._trimmer = Trimmer(RESOURCE_CLAIMS, driver)
        self._sharing = Sharing()
        self._effects = Effects()

    def take_effects(self) -> Effects:
        """What has accumulated since the last call."""
        effects, self._effects = self._effects, Effects()
        return effects

    def reconsider(self) -> None:
        """What did not fit may fit now, for a reason that no object shows."""
        self._effects.room = True

    def pods_of(self, claim: Key) -> list[Pod]:
        """The pods that refer to a claim."""
        return [self.pods[key] for key in self._pods_of.get(claim, ())]

    # -- nodes and their GPUs

    def set_node(self, obj: Obj) -> None:
        """A Node was added or changed."""
        facts = read_node(obj)
        if self.hosts.set_node(facts):
            self._effects.nodes.add(facts.name)
            self._effects.room = True

    def remove_node(self, name: str) -> None:
        """A Node is gone."""
        self.hosts.drop_node(name)
        self._touch_claims(self._claims_of(name))

    def set_mignode(self, obj: Obj) -> None:
        """A MigNode was added or changed; one that cannot be read is as good as gone."""
        name = obj["metadata"]["name"]
        try:
            inventory = from_mignode(obj)
        except (ApiError, ValueError) as error:
            _log.warning("MigNode %s is left out: %s", name, error)
            self.remove_mignode(name)
            return
        before, offered = self.fleet.instance_claims(name), self._offered(name)
        if self.fleet.set_inventory(inventory):
            self._effects.room = True
        if self._offered(name) != offered:
            self._effects.classes = True
        after = self.fleet.instance_claims(name)
        if before is None:
            self._touch_claims(self.fleet.claims_on(name))
        else:
            self._touch_claims(before - (after or frozenset()))

    def remove_mignode(self, name: str) -> None:
        """A MigNode is gone."""
        touched, offered = self._claims_of(name), self._offered(name)
        self.fleet.drop_inventory(name)
        if self._offered(name) != offered:
            self._effects.classes = True
        self._touch_claims(touched)

    def _offered(self, name: str) -> tuple[frozenset[str], bool]:
        """What the generated classes depend on: a node's profiles, and who allocates it."""
        return self.fleet.profiles_of(name), name in self.fleet.schedulers

    # -- classes

    def set_class(self, obj: Obj) -> None:
        """A DeviceClass was added or changed."""
        known = read_class(obj, self.driver)
        self.class_objects[known.name] = obj
        self._effects.classes = True
        if self.classes.get(known.name) != known:
            self.classes[known.name] = known
            self._effects.room = True
            self._effects.pods.update(self._pods_that_ask_for(known.name))

    def remove_class(self, name: str) -> None:
        """A DeviceClass is gone."""
        self.class_objects.pop(name, None)
        self.classes.pop(name, None)
        self._effects.classes = True

    def _pods_that_ask_for(self, device_class: str) -> Iterator[Key]:
        """Those whose claims of the class are not allocated."""
        for key, known in self.claims.items():
            claim = known.claim
            if claim.allocation is None and any(
                choice.class_name == device_class for r in claim.requests for choice in r.choices
            ):
                yield from self._pods_of.get(key, ())

    # -- pods

    def set_pod(self, obj: Obj) -> None:
        """A pod was added or changed."""
        pod = read_pod(obj, self._sharing.needs)
        before = self.pods.get(pod.key)
        if before is not None and before.uid != pod.uid:
            self.remove_pod(pod.key)
            before = None
        self.pods[pod.key] = pod
        self._link(pod.key, before.claim_keys if before else (), pod.claim_keys)
        self._charge(pod, was=before)
        self._effects.pods.add(pod.key)
        if before is not None and before.live and not pod.live:
            self._effects.claims.update(pod.claim_keys)

    def remove_pod(self, key: Key) -> None:
        """A pod is gone."""
        pod = self.pods.pop(key, None)
        if pod is None:
            return
        self._link(key, pod.claim_keys, ())
        self._made_room(self.hosts.charge(key, "", {}), was=pod)
        self._effects.claims.update(pod.claim_keys)
        self._effects.gone_pods.add(pod.uid)

    # -- claims

    def set_claim(self, obj: Obj) -> None:
        """A claim was added or changed.

        An older state than the known one is ignored: the answers to our writes may be known
        before the watch reports them.
        """
        metadata = obj["metadata"]
        key = (metadata["namespace"], metadata["name"])
        known = self.claims.get(key)
        if known is not None and known.claim.ref.uid != metadata["uid"]:
            self.remove_claim(key)
            known = None
        if known is not None and not newer(_version(obj), known.claim.resource_version):
            return
        claim = read_claim(obj, self._sharing.requests)
        self.claims[key] = KnownClaim(claim, obj)
        self._claim_of_uid[claim.ref.uid] = key
        self._account(known.claim if known else None, claim)
        self._effects.claims.add(key)
        self._touch_pods(key)

    def remove_claim(self, key: Key) -> None:
        """A claim is gone."""
        known = self.claims.pop(key, None)
        if known is None:
            return
        self._claim_of_uid.pop(known.claim.ref.uid, None)
        self._writing.pop(known.claim.ref.uid, None)
        self._effects.gone_claims.add(known.claim.ref.uid)
        if self.fleet.release(known.claim.ref.uid):
            self._effects.room = True
        self._touch_pods(key)

    def begin_write(self, claim: ClaimRef, allocation: Allocation | None = None) -> None:
        """A write of ours to a claim begins: of ``allocation``, which counts from now on.

        Without one, the claim loses what it has by our own doing. ``end_write`` must follow.
        """
        self._writing[claim.uid] = allocation
        if allocation is not None:
            self.fleet.hold(claim, allocation)
            self._recharge((claim.namespace, claim.name))

    def end_write(self, claim: ClaimRef) -> None:
        """What came of a write is known: from now on only what the claim says counts."""
        allocation = self._writing.pop(claim.uid, None)
        key = (claim.namespace, claim.name)
        known = self.claims.get(key)
        if allocation is None or known is None or known.claim.allocation is not None:
            return
        if self.fleet.release(claim.uid):
            self._effects.room = True
        self._recharge(key)

    def read_claim(self, obj: Obj) -> Claim:
        """A claim as it would be known, from an answer of the API server."""
        return read_claim(self._trimmer(obj), self._sharing.requests)

    def confirm_claim(self, obj: Obj) -> None:
        """Take the answer to a write of ours, unless the claim is gone meanwhile."""
        metadata = obj["metadata"]
        known = self.claims.get((metadata["namespace"], metadata["name"]))
        if known is None or known.claim.ref.uid != metadata["uid"]:
            return
        if newer(_version(obj), known.claim.resource_version):
            self.set_claim(self._trimmer(obj))

    def learn_demand(self) -> None:
        """Count the latest allocations as demand, oldest first.

        For a controller that starts anew: it then judges as one that made those allocations.
        """
        latest = sorted(
            (known.obj["status"]["allocation"].get("allocationTimestamp") or "", key)
            for key, known in self.claims.items()
            if known.claim.allocation is not None
        )[-_REMEMBERED:]
        for _, key in latest:
            allocation = self.claims[key].claim.allocation
            for profile in self.fleet.profiles_in(allocation) if allocation else ():
                self.markets.observe(profile)

    def _account(self, before: Claim | None, claim: Claim) -> None:
        """Bring the fleet's books up to a claim's allocation."""
        allocation, uid = claim.allocation, claim.ref.uid
        if allocation is not None and allocation.of_driver(self.driver):
            if before is None or before.allocation != allocation:
                self.fleet.hold(claim.ref, allocation)
            return
        if self._writing.get(uid) is None and self.fleet.release(uid):
            self._effects.room = True
        by_us = uid in self._writing and self._writing[uid] is None
        held = before.allocation if before is not None else None
        others = before is not None and before.by_others(self.driver)
        if held is None or others or not held.of_driver(self.driver) or by_us or claim.deleting:
            return
        if self.finalizer in claim.finalizers:
            key = (claim.ref.namespace, claim.ref.name)
            self._effects.taken_back.append(TakenBack(key, held.node))

    def _touch_pods(self, claim: Key) -> None:
        self._recharge(claim)
        self._effects.pods.update(self._pods_of.get(claim, ()))

    def _recharge(self, claim: Key) -> None:
        for key in self._pods_of.get(claim, ()):
            self._charge(self.pods[key])

    def _claims_of(self, node: str) -> frozenset[str]:
        """UIDs of the claims that are allocated on a node, or that it has instances of."""
        return self.fleet.claims_on(node) | (self.fleet.instance_claims(node) or frozenset())

    def _touch_claims(self, uids: frozenset[str]) -> None:
        self._effects.claims.update(self._claim_of_uid[u] for u in uids if u in self._claim_of_uid)

    def _charge(self, pod: Pod, *, was: Pod | None = None) -> None:
        """Charge a pod to the node where it is, or where our allocation sends it."""
        node = pod.node
        if not node:
            known = (self.claims[k].claim for k in pod.claim_keys if k in self.claims)
            held = (c.allocation or self._writing.get(c.ref.uid) for c in known)
            node = next((a.node for a in held if a is not None and a.node), "")
        freed = self.hosts.charge(pod.key, node if pod.live else "", pod.needs.requests)
        self._made_room(freed, was=was)

    def _made_room(self, node: str, *, was: Pod | None) -> None:
        """A pod left ``node``. If it was bound there, the scheduler may think anew about it."""
        if node:
            self._effects.room = True
        if node and was is not None and was.node == node:
            self._effects.nodes.add(node)

    def _link(self, pod: Key, before: tuple[Key, ...], after: tuple[Key, ...]) -> None:
        for claim in before:
            if claim not in after:
                self._pods_of[claim].discard(pod)
                if not self._pods_of[claim]:
                    del self._pods_of[claim]
        for claim in after:
            self._pods_of.setdefault(claim, set()).add(pod)


def newer(version: str, known: str) -> bool:
    """Whether one resourceVersion of an object is later than another."""
    if version.isdigit() and known.isdigit():
        return int(version) > int(known)
    return version != known


def _version(obj: Obj) -> str:
    return str(obj["metadata"].get("resourceVersion") or "")
