"""Cluster as the controller knows it: indexes over the objects of the API server.

Owned by one thread. Every change is noted in :class:`Effects` with what it may affect.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from api.mignode import RoomRequest
from controller.cluster.claims import KnownClaims, UnnamedClaims
from controller.cluster.decoder import ParsedSpecs
from controller.cluster.pods import KnownPods
from controller.cluster.records import Effects
from controller.cluster.templates import KnownTemplates
from dra.allocator.fleet import Fleet
from dra.cel.kinds import Kinds
from dra.claims.allocation import Allocation
from dra.claims.claims import Claim
from dra.claims.classes import DeviceClass, read_class
from dra.claims.otherdevices import OtherDevices
from dra.claims.reader import KnownClaim
from dra.claims.reasons import Reason
from dra.common.resources import (
    DEVICE_CLASSES,
    MIG_NODES,
    NAMESPACES,
    NODES,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    STORAGE_CLASSES,
    Obj,
    ObjectKey,
    Resource,
    at,
)
from dra.gpu.inventory import ClaimRef, Inventory
from dra.gpu.mignode import SILENT, from_mignode, heartbeat_of
from dra.gpu.names import defrag
from dra.kube.reflector import Change, Reflector
from dra.pods.nodefit import read_node
from dra.pods.pods import DEFAULT_SCHEDULER, Pod
from dra.pods.residents import Hosts
from dra.pods.volumes import read_storage_class, read_volume, read_volume_claim

_log = logging.getLogger(__name__)

VOLUMES = (PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES, STORAGE_CLASSES)
"""Resources of volumes: none of them counts before all three are listed."""

_REMEMBERED = 2000
"""Number of latest allocations that count as demand at a start; older ones hardly matter."""

_SHOWN = 500
"""Characters that are kept of the error that makes a MigNode unreadable."""


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """A MigNode of our driver; the controller or kube-scheduler allocates its GPUs."""

    inventory: Inventory
    asked: str = ""
    """Value of the annotation by which an administrator asks for room; empty without one."""
    heartbeat: datetime | None = None


class Cluster:
    """Nodes, GPUs, pods, claims and classes, by name and by the objects that they refer to.

    Volumes and namespaces are mirrored where the controller may read them; where it may not, only
    kube-scheduler's refusals show what is in the way.

    ``pod_index`` and ``claim_index``: pods and claims with their records.
    ``unreadable``: by node, the error that makes its MigNode unreadable; such a node is left out.
    ``room_requests``: by node, the request for room that its MigNode has got since MigNodes were
    first listed. Requests found in that list are left out: whoever made them may be gone.
    """

    def __init__(
        self,
        driver: str,
        finalizer: str,
        kinds: Kinds,
        *,
        schedulers: Iterable[str] = (DEFAULT_SCHEDULER,),
        claims_mirror: Reflector | None = None,
    ) -> None:
        self.driver = driver
        self.finalizer = finalizer
        self.schedulers = frozenset(schedulers)
        self.fleet = Fleet(driver, kinds)
        self.hosts = Hosts()
        self.classes: dict[str, DeviceClass] = {}
        self.class_objects: dict[str, Obj] = {}
        self.others = OtherDevices(driver)
        self.unreadable: dict[str, str] = {}
        self.room_requests: dict[str, RoomRequest] = {}
        self._effects, specs = Effects(), ParsedSpecs()
        self._nodes: dict[str, NodeRecord] = {}
        self._unlisted = {*VOLUMES}
        self.claim_index = KnownClaims(
            self.fleet, finalizer, self._effects, specs, others=self.others
        )
        self.pod_index = KnownPods(self.hosts, self.claim_index, self.classes, self._effects, specs)
        self._unnamed = UnnamedClaims(claims_mirror)
        self.templates = KnownTemplates(driver, self._effects)
        self.pods: Mapping[ObjectKey, Pod] = self.pod_index.by_key
        self.claims: Mapping[ObjectKey, KnownClaim] = self.claim_index.by_key
        self.gangs = self.pod_index.gangs

    def take_effects(self) -> Effects:
        """Effects of the changes since the last call."""
        return self._effects.take()

    def make_room(self, *nodes: str) -> None:
        """Note that pods may fit now on ``nodes``, or on any node if none is given."""
        self._effects.room.update(nodes or [""])

    def apply(self, resource: Resource, change: Change | None) -> None:
        """Take a change that a mirror reports; an object that cannot be understood is left out.

        None instead of a change says that all objects of the resource were listed.
        """
        if change is None:
            self.note_listed(resource)
            return
        known, obj = _KINDS.get(resource), change.new or change.old or {}
        try:
            key = (obj["metadata"].get("namespace") or "", obj["metadata"]["name"])
            if known is None:
                self.gangs.change_group(resource, key, change.new)
            elif change.new is None:
                known.remove(self, key if resource.namespaced else key[1])
            elif change.rewound and resource == RESOURCE_CLAIMS:
                self.set_claim(change.new, rewound=True)
            else:
                known.set(self, change.new)
        except Exception:  # noqa: BLE001 - whatever an object says, the others are to be served
            name = obj.get("metadata", {}).get("name")
            fields = {"resource": str(resource), "object": name}
            _log.exception("left out: an object that cannot be understood", extra=fields)

    def note_listed(self, resource: Resource) -> None:
        self._unlisted.discard(resource)
        if not self._unlisted and not self.hosts.volumes.listed:
            self.hosts.volumes.listed = True
            self._touch_users_of_volumes()
        self.gangs.note_listed(resource)

    # -- nodes and their GPUs

    def inventory(self, node: str) -> Inventory | None:
        """Inventory of a node, also where kube-scheduler allocates; None without our MigNode."""
        known = self._nodes.get(node)
        return known.inventory if known is not None else None

    def silent_nodes(self, now: datetime) -> set[str]:
        """Nodes whose plugin has not been heard of for too long; none if that is so of all."""
        since = now - SILENT
        found = {n for n, r in self._nodes.items() if r.heartbeat and r.heartbeat < since}
        return found if len(found) < len(self._nodes) else set()

    def set_node(self, obj: Obj) -> None:
        facts = read_node(obj)
        if self.hosts.set_node(facts):
            self._effects.nodes.add(facts.name)
            self._effects.changed_nodes.add(facts.name)
            self._effects.room.add(facts.name)
            self._touch_pods_of(self.fleet.claims_on(facts.name))

    def remove_node(self, name: str) -> None:
        self.hosts.drop_node(name)
        self.claim_index.touch(self._claims_on(name))
        self._touch_pods_of(self.fleet.claims_on(name))

    def set_mignode(self, obj: Obj) -> None:
        """Take a MigNode that was added or changed; one that cannot be read counts as removed."""
        name = obj["metadata"]["name"]
        try:
            inventory = from_mignode(obj)
            before, offered = self.fleet.held_claims(name), self._offered(name)
            if self.fleet.set_inventory(inventory):
                self._effects.room.add(name)
        except Exception as error:  # noqa: BLE001 - whatever it says, other nodes notice nothing
            _log.warning("MigNode %s is left out: %s", name, error)
            self._drop_mignode(name)
            self.unreadable[name] = f"{type(error).__name__}: {error}"[:_SHOWN]
            return
        self.unreadable.pop(name, None)
        self._effects.classes = self._effects.classes or self._offered(name) != offered
        if before is None:
            self.claim_index.touch(self.fleet.claims_on(name))
        else:
            gone = before - (self.fleet.held_claims(name) or frozenset())
            self.claim_index.touch(gone)
            self._effects.quota |= bool(gone and self.fleet.quotas.limits)
        if inventory.driver == self.driver:
            asked = at(obj, "metadata", "annotations", defrag(self.driver), default="")
            known = NodeRecord(inventory, asked, heartbeat_of(obj))
            self._touch_pods_of(self._set_own(known))
        else:
            self._nodes.pop(name, None)

    def remove_mignode(self, name: str) -> None:
        self._drop_mignode(name)

    def _drop_mignode(self, name: str) -> None:
        self.unreadable.pop(name, None)
        touched, offered = self._claims_on(name), self._offered(name)
        self.fleet.drop_inventory(name)
        self._nodes.pop(name, None)
        self._set_request(name, None)
        self._effects.changed_nodes.add(name)
        self._effects.classes = self._effects.classes or self._offered(name) != offered
        self.claim_index.touch(touched)

    def _set_own(self, known: NodeRecord) -> frozenset[str]:
        """Take a MigNode of our driver.

        Returns the UIDs of claims whose pods are to be looked at: claims whose Prepare failed or
        may have been cut short, since kubelet may have to ask for them again.
        """
        inventory, name = known.inventory, known.inventory.node
        before = self._nodes.get(name)
        self._nodes[name] = known
        self._effects.changed_nodes.add(name)
        if before is not None and before.asked != known.asked:
            self._set_request(name, RoomRequest.read(known.asked))
        was = before.inventory if before is not None else None
        found = frozenset(f.claim.uid for f in inventory.failed_claims)
        if inventory.resumed and (was is None or was.resumed != inventory.resumed):
            found = self.fleet.claims_on(name)
        return found

    def _set_request(self, node: str, request: RoomRequest | None) -> None:
        before = self.room_requests.pop(node, None)
        if request is not None:
            self.room_requests[node] = request
        uids = {each.uid for each in (before, request) if each is not None}
        self._effects.pods.update(key for key, pod in self.pods.items() if pod.uid in uids)

    def _offered(self, name: str) -> tuple[frozenset[str], bool]:
        """The profiles of a node, and True if kube-scheduler allocates it, for the classes."""
        return self.fleet.profiles_of(name), name in self.fleet.schedulers

    def _claims_on(self, node: str) -> frozenset[str]:
        """UIDs of the claims that are allocated on a node or have GPU instances there."""
        return self.fleet.claims_on(node) | (self.fleet.held_claims(node) or frozenset())

    def _touch_pods_of(self, claims: Iterable[str]) -> None:
        for key in self.claim_index.keys_of(claims):
            self.pod_index.touch(key)

    def set_slice(self, obj: Obj) -> None:
        self.others.set_slice(obj)
        self._effects.others.add(obj["spec"]["nodeName"])

    # -- classes

    def set_class(self, obj: Obj) -> None:
        known = read_class(obj, self.driver)
        self.class_objects[known.name] = obj
        self._effects.classes = True
        if self.classes.get(known.name) != known:
            self.classes[known.name] = known
            self.fleet.limit(known.name, known.quota)
            self._effects.room.add("")
            self._effects.pods.update(self._pods_that_ask_for(known.name))

    def remove_class(self, name: str) -> None:
        self.class_objects.pop(name, None)
        self.classes.pop(name, None)
        self.fleet.limit(name, None)
        self._effects.classes = True

    def _pods_that_ask_for(self, device_class: str) -> Iterator[ObjectKey]:
        for key, known in self.claims.items():
            claim = known.claim
            if claim.allocation is None and any(
                choice.class_name == device_class for r in claim.requests for choice in r.choices
            ):
                yield from (pod.key for pod in self.pod_index.of_claim(key))

    # -- volumes and namespaces

    def set_volume_claim(self, obj: Obj) -> None:
        claim = read_volume_claim(obj)
        if self.hosts.volumes.set_claim(claim):
            self._effects.pods.update(self.pod_index.watchers.of_volume_claim(claim.key))

    def remove_volume_claim(self, key: ObjectKey) -> None:
        self.hosts.volumes.remove_claim(key)
        self._effects.pods.update(self.pod_index.watchers.of_volume_claim(key))

    def set_volume(self, obj: Obj) -> None:
        if self.hosts.volumes.set_volume(read_volume(obj)):
            self._touch_users_of_volumes()

    def remove_volume(self, name: str) -> None:
        self.hosts.volumes.remove_volume(name)
        self._touch_users_of_volumes()

    def set_storage_class(self, obj: Obj) -> None:
        if self.hosts.volumes.set_class(read_storage_class(obj)):
            self._touch_users_of_volumes()

    def remove_storage_class(self, name: str) -> None:
        self.hosts.volumes.remove_class(name)
        self._touch_users_of_volumes()

    def _touch_users_of_volumes(self) -> None:
        self._effects.pods.update(self.pod_index.watchers.of_volumes())

    def set_namespace(self, obj: Obj) -> None:
        name, labels = obj["metadata"]["name"], at(obj, "metadata", "labels", default={})
        if self.hosts.residents.set_namespace(name, labels):
            self._effects.room.add("")
        self.templates.set_namespace(name, labels)

    def remove_namespace(self, name: str) -> None:
        self.hosts.residents.set_namespace(name, None)
        self.templates.set_namespace(name, {})
        self._unnamed.remove_namespace(name)

    # -- pods

    def set_pod(self, obj: Obj) -> None:
        key = (obj["metadata"]["namespace"], obj["metadata"]["name"])
        before = self.pods.get(key)
        self.pod_index.set(obj)
        pod = self.pods[key]
        self.templates.change(before, pod)
        if before is None or before.claim_keys != pod.claim_keys:
            for claim in {*pod.claim_keys, *(before.claim_keys if before is not None else ())}:
                self._sort_claim(claim)
                if claim not in self.claims:
                    self._unnamed.find(claim)

    def remove_pod(self, key: ObjectKey) -> None:
        before = self.pods.get(key)
        self.pod_index.remove(key)
        self.templates.change(before, None)
        for claim in before.claim_keys if before is not None else ():
            self._sort_claim(claim)

    def waiting_claims(self) -> Iterator[tuple[str, Reason, str]]:
        """UID, reason and creation time of each claim that waits. May be called by any thread."""
        for record in [*self.pod_index.records.values()]:  # one step, which no other thread divides
            if (reason := record.waits_for) is not None:
                for uid, created in record.waiting_claims:
                    if uid in self.claim_index.key_of_uid:
                        yield uid, reason, created

    # -- claims

    def set_claim(self, obj: Obj, *, rewound: bool = False) -> None:
        """Take a claim that was added or changed.

        A state older than the known one is ignored, as the answers to our writes may be known
        before the watch reports them. It is taken if the server was ``rewound`` to an older state.
        """
        if self.claim_index.set(obj, rewound=rewound):
            key = (obj["metadata"]["namespace"], obj["metadata"]["name"])
            self.pod_index.adopt(obj)
            self.pod_index.touch(key)
            self._sort_claim(key)

    def _sort_claim(self, key: ObjectKey) -> None:
        """Note whether a pod names a claim, or it is of use without; else it may be left out."""
        known = self.claims.get(key)
        if known is None or not self._is_unnamed(key, known.claim):
            self._unnamed.discard(key)
        elif not self._unnamed.admit(key, known.obj):
            self.claim_index.remove(key)

    def _is_unnamed(self, key: ObjectKey, claim: Claim) -> bool:
        if claim.allocation is not None or claim.reserved_for:
            return False
        if claim.deleting and self.finalizer in claim.finalizers:
            return False
        record = self.claim_index.records.get(claim.ref.uid)
        return not (self.pod_index.of_claim(key) or (record is not None and record.writing))

    def remove_claim(self, key: ObjectKey) -> None:
        self._unnamed.discard(key)
        if self.claim_index.remove(key):
            self.pod_index.touch(key)

    def begin_write(self, claim: ClaimRef, allocation: Allocation | None = None) -> None:
        """Note that a write of ours to a claim begins; ``end_write`` must follow.

        ``allocation``: it is written and counts from now on; None: the write removes something.
        """
        self.claim_index.begin_write(claim, allocation)
        if allocation is not None:
            self.pod_index.recharge(claim.key)

    def end_write(self, claim: ClaimRef) -> None:
        """Note that the outcome of a write is known: from now on the claim's own state counts."""
        if self.claim_index.end_write(claim):
            self.pod_index.recharge(claim.key)

    def confirm_claim(self, obj: Obj) -> None:
        """Take the claim in the answer to our write, unless it is gone or known to be newer."""
        news = self.claim_index.news(obj)
        if news is not None:
            self.set_claim(news)

    def learn_demand(self) -> None:
        """Count the latest allocations as demand, oldest first.

        A controller that starts then judges demand as the one that made those allocations.
        """
        for allocation in self.claim_index.latest_allocations(_REMEMBERED):
            for profile in self.fleet.profiles_in(allocation):
                self.fleet.demand.observe(profile)


class _Kind(NamedTuple):
    """Methods for the objects of a resource; ``remove`` takes the key, or the name alone."""

    set: Callable[[Cluster, Obj], None]
    remove: Callable[[Cluster, Any], object]


_KINDS: Mapping[Resource, _Kind] = {
    NODES: _Kind(Cluster.set_node, Cluster.remove_node),
    MIG_NODES: _Kind(Cluster.set_mignode, Cluster.remove_mignode),
    PODS: _Kind(Cluster.set_pod, Cluster.remove_pod),
    RESOURCE_CLAIMS: _Kind(Cluster.set_claim, Cluster.remove_claim),
    DEVICE_CLASSES: _Kind(Cluster.set_class, Cluster.remove_class),
    PERSISTENT_VOLUME_CLAIMS: _Kind(Cluster.set_volume_claim, Cluster.remove_volume_claim),
    PERSISTENT_VOLUMES: _Kind(Cluster.set_volume, Cluster.remove_volume),
    STORAGE_CLASSES: _Kind(Cluster.set_storage_class, Cluster.remove_storage_class),
    NAMESPACES: _Kind(Cluster.set_namespace, Cluster.remove_namespace),
    RESOURCE_CLAIM_TEMPLATES: _Kind(
        lambda cluster, obj: cluster.templates.set(obj),
        lambda cluster, key: cluster.templates.remove(key),
    ),
    RESOURCE_SLICES: _Kind(
        Cluster.set_slice, lambda cluster, name: cluster.others.remove_slice(name)
    ),
}
"""Resources beside those of pod groups."""
