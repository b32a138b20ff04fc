"""Cluster as the controller knows it: indexes over the objects of the API server.

Owned by one thread. Every change leaves in :class:`Effects` what it may have consequences for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from controller.cluster.effects import Effects
from controller.cluster.known_claims import KnownClaims
from controller.cluster.known_gangs import KnownGangs
from controller.cluster.known_nodes import KnownNodes, SpecReservations
from controller.cluster.known_pods import KnownPods
from controller.cluster.known_templates import KnownTemplates
from controller.cluster.known_volumes import KnownVolumes
from controller.cluster.likeness import Likeness
from controller.cluster.trimming.spec_cache import Sharing
from controller.cluster.watchers import Watchers
from dra.allocator.fleet import Fleet
from dra.cel.kinds import Kinds
from dra.claims.allocation import Allocation
from dra.claims.claims import Claim
from dra.claims.classes import DeviceClass, read_class
from dra.claims.otherdevices import OtherDevices
from dra.claims.reader import KnownClaim
from dra.common.resources import Obj, ObjectKey
from dra.gpu.inventory import ClaimRef, Inventory
from dra.pods.pods import DEFAULT_SCHEDULER, Pod
from dra.pods.residents import Hosts

_REMEMBERED = 2000
"""Allocations that count as demand at a start; older ones would hardly weigh."""


class Cluster:
    """Nodes, GPUs, pods, claims and classes, by name and by what they refer to."""

    def __init__(
        self,
        driver: str,
        finalizer: str,
        kinds: Kinds,
        *,
        schedulers: Iterable[str] = (DEFAULT_SCHEDULER,),
    ) -> None:
        self.driver = driver
        self.finalizer = finalizer
        self.schedulers = frozenset(schedulers)
        self.fleet = Fleet(driver, kinds)
        self.hosts = Hosts()
        self.classes: dict[str, DeviceClass] = {}
        self.class_objects: dict[str, Obj] = {}
        self.others = OtherDevices(driver)
        self._effects = Effects()
        sharing = Sharing()
        self._claims = KnownClaims(
            self.fleet, finalizer, self._effects, sharing, others=self.others
        )
        watchers = Watchers(self.hosts.residents)
        self._pods = KnownPods(self.hosts, self._claims, watchers, self._effects, sharing)
        self.volumes = KnownVolumes(self.hosts, watchers, self._effects)
        self.templates = KnownTemplates(driver, self._effects)
        self._likeness = Likeness(self.claims, self.classes)
        self._nodes = KnownNodes(self.fleet, self.hosts, self._claims, self._effects)

    @property
    def pods(self) -> dict[ObjectKey, Pod]:
        """Every known pod; not to be changed."""
        return self._pods.by_key

    @property
    def claims(self) -> dict[ObjectKey, KnownClaim]:
        """Every known claim; not to be changed."""
        return self._claims.by_key

    @property
    def gangs(self) -> KnownGangs:
        """Pods that belong together."""
        return self._pods.gangs

    @property
    def has_effects(self) -> bool:
        """True if there were changes since effects were taken."""
        return bool(self._effects)

    def take_effects(self) -> Effects:
        """Effects of the changes since the last call."""
        return self._effects.take()

    def make_room(self, *nodes: str) -> None:
        """Something may fit on ``nodes`` (or anywhere, without any): no object shows why."""
        self._effects.room.update(nodes)
        self._effects.room_anywhere = self._effects.room_anywhere or not nodes

    def pods_of(self, claim: ObjectKey) -> list[Pod]:
        """The pods that refer to a claim."""
        return self._pods.of_claim(claim)

    def template_of(self, pod: Pod) -> str:
        """Equal for pods that are alike: what kube-scheduler says of one holds for the others."""
        return self._likeness.template(pod)

    # -- nodes and their GPUs

    def set_node(self, obj: Obj) -> None:
        """A Node was added or changed."""
        if self._nodes.set_node(obj):
            self._touch_pods_on(obj["metadata"]["name"])

    def remove_node(self, name: str) -> None:
        """A Node is gone."""
        self._nodes.remove_node(name)
        self._touch_pods_on(name)

    def _touch_pods_on(self, node: str) -> None:
        """Have the pods looked at whose claims are allocated on ``node``: it may suit no longer."""
        for key in self._claims.keys_of(self.fleet.claims_on(node)):
            self._pods.touch(key)

    def set_mignode(self, obj: Obj) -> None:
        """A MigNode was added or changed; one that cannot be read is as good as gone."""
        for key in self._claims.keys_of(self._nodes.set_mignode(obj)):
            self._pods.touch(key)

    def inventory(self, node: str) -> Inventory | None:
        """Inventory of a node, whoever allocates its GPUs; None without a MigNode of ours."""
        return self._nodes.inventories.get(node)

    @property
    def unreadable(self) -> Mapping[str, str]:
        """Nodes that are left out as their MigNodes cannot be read, and why."""
        return self._nodes.unreadable

    @property
    def reservations(self) -> Mapping[str, SpecReservations]:
        """Reservations by node, as the MigNodes have them."""
        return self._nodes.reservations

    def remove_mignode(self, name: str) -> None:
        """A MigNode is gone."""
        reserved = self._nodes.reservations.get(name)
        self._nodes.remove_mignode(name)
        for key in self._claims.keys_of(reserved.claims if reserved is not None else ()):
            self._pods.touch(key)

    def set_slice(self, obj: Obj) -> None:
        """A ResourceSlice of another driver was added or changed."""
        self.others.set_slice(obj)
        self._effects.others.add(obj["spec"]["nodeName"])

    # -- classes

    def set_class(self, obj: Obj) -> None:
        """A DeviceClass was added or changed."""
        known = read_class(obj, self.driver)
        self.class_objects[known.name] = obj
        self._effects.classes = True
        if self.classes.get(known.name) != known:
            self.classes[known.name] = known
            self._effects.room_anywhere = True
            self._effects.pods.update(self._pods_that_ask_for(known.name))

    def remove_class(self, name: str) -> None:
        """A DeviceClass is gone."""
        self.class_objects.pop(name, None)
        self.classes.pop(name, None)
        self._effects.classes = True

    def _pods_that_ask_for(self, device_class: str) -> Iterator[ObjectKey]:
        """Those whose claims of the class are not allocated."""
        for key, known in self.claims.items():
            claim = known.claim
            if claim.allocation is None and any(
                choice.class_name == device_class for r in claim.requests for choice in r.choices
            ):
                yield from (pod.key for pod in self.pods_of(key))

    # -- namespaces

    def set_namespace(self, obj: Obj) -> None:
        """A Namespace was added or changed."""
        self.volumes.set_namespace(obj)
        self.templates.set_namespace(obj)

    def remove_namespace(self, name: str) -> None:
        """A Namespace is gone."""
        self.volumes.remove_namespace(name)
        self.templates.remove_namespace(name)

    # -- pods

    def set_pod(self, obj: Obj) -> None:
        """A pod was added or changed."""
        key = (obj["metadata"]["namespace"], obj["metadata"]["name"])
        before = self.pods.get(key)
        self._pods.set(obj)
        self.templates.change(before, self.pods[key])

    def remove_pod(self, key: ObjectKey) -> None:
        """A pod is gone."""
        before = self.pods.get(key)
        self._pods.remove(key)
        self.templates.change(before, None)

    def sent_to(self, pod: Pod) -> str:
        """The node that was decided for a pod that is not bound; empty without one."""
        return "" if pod.node else self._pods.sent_to(pod)

    def end_charge(self, key: ObjectKey) -> None:
        """Keep nothing free on its node any more for a pod that is allocated and not bound."""
        self._pods.end_charge(key)

    # -- claims

    def set_claim(self, obj: Obj, *, rewound: bool = False) -> None:
        """A claim was added or changed.

        An older state than the known one is ignored: the answers to our writes may be known
        before the watch reports them. Not if the server itself is ``rewound`` to an older state.
        """
        if self._claims.set(obj, rewound=rewound):
            self._pods.adopt(obj)
            self._pods.touch((obj["metadata"]["namespace"], obj["metadata"]["name"]))

    def remove_claim(self, key: ObjectKey) -> None:
        """A claim is gone."""
        if self._claims.remove(key):
            self._pods.touch(key)

    def begin_write(self, claim: ClaimRef, allocation: Allocation | None = None) -> None:
        """A write of ours to a claim begins: of ``allocation``, which counts from now on.

        Without one, the claim loses what it has by our own doing. ``end_write`` must follow.
        """
        self._claims.begin_write(claim, allocation)
        if allocation is not None:
            self._pods.recharge((claim.namespace, claim.name))

    def end_write(self, claim: ClaimRef) -> None:
        """The outcome of a write is known: from now on only what the claim says counts."""
        if self._claims.end_write(claim):
            self._pods.recharge((claim.namespace, claim.name))

    def read_claim(self, obj: Obj) -> Claim:
        """A claim as it would be known, from an answer of the API server."""
        return self._claims.read(obj)

    def confirm_claim(self, obj: Obj) -> None:
        """Take the answer to a write of ours, unless the claim is gone meanwhile."""
        trimmed = self._claims.trimmed(obj)
        if trimmed is not None:
            self.set_claim(trimmed)

    def learn_demand(self) -> None:
        """Count the latest allocations as demand, oldest first.

        For a controller that starts anew: it then judges as one that made those allocations.
        """
        for allocation in self._claims.latest_allocations(_REMEMBERED):
            for profile in self.fleet.profiles_in(allocation):
                self.fleet.demand.observe(profile)
