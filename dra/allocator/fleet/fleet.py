"""All GPUs that the controller allocates, kept up to date from MigNodes and allocations."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Hashable, Iterable, Mapping
from dataclasses import replace

from dra.allocator.fleet.candidates import Candidates
from dra.allocator.fleet.gpustate import GpuState
from dra.allocator.fleet.numbering import Numbering
from dra.allocator.fleet.overlay import Overlay, Supposition
from dra.allocator.fleet.view import GpuFingerprints, Holder, NodeGpus
from dra.allocator.scoring.geometry_index import GeometryIndex, GeometryIndexes
from dra.allocator.scoring.score import Weights
from dra.cel.kinds import Kinds
from dra.claims.allocation import Allocation
from dra.gpu.holdings import why_blocked
from dra.gpu.inventory import AllocatorKind, ClaimRef, Gpu, Inventory
from dra.gpu.names import DeviceNameError, GpuDevice, MigDevice, parse_device
from dra.gpu.shares import NO_ASK, Ask, ShareOffer, share_of


class Fleet:
    """The GPUs of every node whose allocator is the controller, and who holds them."""

    def __init__(self, driver: str, kinds: Kinds, geometry_indexes: GeometryIndexes) -> None:
        self.driver = driver
        self.kinds = kinds
        self.geometry_indexes = geometry_indexes
        self.nodes: dict[str, NodeGpus] = {}
        self.schedulers: set[str] = set()
        """Nodes whose GPUs kube-scheduler allocates."""
        self.candidates = Candidates(kinds)
        self.alike: dict[Hashable, tuple[str, ...]] = {}
        """The nodes by fingerprint, in name order; a group that changes is replaced."""
        self._node_fingerprints: Numbering[GpuFingerprints] = Numbering()
        self._gpu_fingerprints: Numbering[Hashable] = Numbering()
        self._instances: dict[str, frozenset[str]] = {}
        self._profiles: dict[str, frozenset[str]] = {}
        self._allocations: dict[str, Holder] = {}
        self._by_node: dict[str, set[str]] = {}
        self._left_out: dict[tuple[str, str], str] = {}

    def set_inventory(self, inventory: Inventory) -> bool:
        """Take a node's inventory; True when that may have made room."""
        if inventory.driver != self.driver:
            return self.drop_inventory(inventory.node)
        self._instances[inventory.node] = frozenset(_claim_uids(inventory))
        self._profiles[inventory.node] = frozenset(_profile_names(inventory))
        if inventory.allocator is not AllocatorKind.CONTROLLER:
            self._remove(inventory.node)
            self.schedulers.add(inventory.node)
            return False
        before = self.nodes.get(inventory.node)
        if before is not None and before.inventory == inventory:
            return False
        node = NodeGpus(inventory, [self._state(g, inventory) for g in _in_order(inventory.gpus)])
        self._remove(inventory.node)
        self.nodes[inventory.node] = node
        for uid in self._by_node.get(inventory.node, ()):
            ref, allocation = self._allocations[uid]
            self._attach(node, ref, allocation)
        for state in node.gpus:
            state.recount()
        self._enter(node.gpus)
        self._group_anew(node)
        if before is None or before.inventory.capabilities != inventory.capabilities:
            return True
        return _rooms_of(before) != _rooms_of(node)

    def drop_inventory(self, node: str) -> bool:
        """Forget a node; False, because that makes no room."""
        self._remove(node)
        self._instances.pop(node, None)
        self._profiles.pop(node, None)
        return False

    def leave_out(self, node: str, gpu: str, why: str) -> None:
        """Give out nothing of ``gpu-<minor>`` of a node for the reason ``why``; "" ends that."""
        if why:
            self._left_out[node, gpu] = why
        else:
            self._left_out.pop((node, gpu), None)
        known = self.nodes.get(node)
        state = known.gpu(gpu) if known is not None else None
        if known is None or state is None:
            return
        self._leave(state)
        state.blocked = self._why_blocked(state.gpu, state.inventory)
        self._enter([state])
        self._group_anew(known)

    def hold(self, ref: ClaimRef, allocation: Allocation) -> None:
        """Count what a claim holds; an earlier allocation of the same claim is replaced."""
        before = self._allocations.get(ref.uid)
        if before is not None and self._holds(before[1]) == self._holds(allocation):
            self._allocations[ref.uid] = (ref, allocation)
            return
        self.release(ref.uid)
        self._allocations[ref.uid] = (ref, allocation)
        self._by_node.setdefault(allocation.node, set()).add(ref.uid)
        node = self.nodes.get(allocation.node)
        if node is not None:
            self._change(node, self._attach(node, ref, allocation))

    def release(self, claim_uid: str) -> bool:
        """Count it no longer; True when it was counted."""
        known = self._allocations.pop(claim_uid, None)
        if known is None:
            return False
        name = known[1].node
        self._by_node[name].discard(claim_uid)
        if not self._by_node[name]:
            del self._by_node[name]
        node = self.nodes.get(name)
        if node is None:
            return True
        self._change(node, _detach(node, claim_uid))
        return True

    def without(self, claim_uids: Collection[str], *, holding: Iterable[Holder] = ()) -> Overlay:
        """The fleet as it would be if these claims held nothing, and others what is given.

        Nothing of this fleet changes, and all but the GPUs in question is shared: what is returned
        is good until this fleet changes.
        """
        added = {ref.uid: (ref, held) for ref, held in holding}
        nodes: dict[str, NodeGpus] = {}
        for uid in {*claim_uids, *added}:
            known = self._allocations.get(uid)
            if known is not None and (node := self._copied(known[1].node, nodes)) is not None:
                _detach(node, uid)
        for ref, allocation in added.values():
            if (node := self._copied(allocation.node, nodes)) is not None:
                self._attach(node, ref, allocation)
        for name, node in nodes.items():
            for index, before in enumerate(self.nodes[name].gpus):
                state = node.gpus[index]
                if state.claims == before.claims:
                    node.gpus[index] = before
                else:
                    state.recount()
                    number = self._gpu_fingerprints.find(state.traits)
                    state.fingerprint = state.traits if number is None else number
            node.gpu_fingerprints = tuple(state.fingerprint for state in node.gpus)
            number = self._node_fingerprints.find(node.gpu_fingerprints)
            node.fingerprint = node.gpu_fingerprints if number is None else number
        changed = {n: node for n, node in nodes.items() if node.gpus != self.nodes[n].gpus}
        return Overlay(self, Supposition(frozenset(claim_uids), added), changed)

    def weights(self, index: GeometryIndex) -> Weights:
        """Weights of slices of a geometry now."""
        return self.geometry_indexes.weights(index)

    def counts(self, claim_uid: str) -> bool:
        """True if a claim is counted: it is allocated, or may be."""
        return claim_uid in self._allocations

    def instance_claims(self, node: str) -> frozenset[str] | None:
        """UIDs of the claims that the node has instances of, None without a MigNode of ours.

        Whoever allocates the node: claims of an earlier mode may still be on it.
        """
        return self._instances.get(node)

    def claims_on(self, node: str) -> frozenset[str]:
        """UIDs of the claims that are allocated on ``node``."""
        return frozenset(self._by_node.get(node, ()))

    def profiles_of(self, node: str) -> frozenset[str]:
        """Names of the profiles that a node's GPUs have, whoever allocates them."""
        return self._profiles.get(node, frozenset())

    @property
    def profiles_by_node(self) -> Mapping[str, frozenset[str]]:
        """Names of the profiles that the GPUs of each node have, whoever allocates them."""
        return self._profiles

    def profiles(self) -> frozenset[str]:
        """Names of the profiles that any node's GPUs have."""
        return frozenset().union(*set(self._profiles.values()))

    def profiles_in(self, allocation: Allocation) -> Iterable[str]:
        """The profile names of the slices in an allocation of ours, where its node is known.

        Shares are left out: most of them are of a slice that is there.
        """
        node = self.nodes.get(allocation.node)
        for allocated in allocation.of_driver(self.driver) if node else ():
            try:
                device = parse_device(allocated.device)
            except DeviceNameError:
                continue
            state = node.gpu(device.gpu) if node and isinstance(device, MigDevice) else None
            if state is not None and state.gpu.geometry and isinstance(device, MigDevice):
                profile = state.gpu.geometry.by_id(device.profile_id)
                if profile is not None and not allocated.admin_access and not device.shared:
                    yield profile.name

    def _state(self, gpu: Gpu, inventory: Inventory) -> GpuState:
        sliceable = gpu.mig_enabled and gpu.geometry is not None
        return GpuState(
            gpu=gpu,
            inventory=inventory,
            kind=self.kinds.of(gpu, inventory),
            geometry_index=self.geometry_indexes.of(gpu.geometry)
            if sliceable and gpu.geometry
            else None,
            blocked=self._why_blocked(gpu, inventory),
        )

    def _why_blocked(self, gpu: Gpu, inventory: Inventory) -> str:
        return why_blocked(gpu, inventory) or self._left_out.get((inventory.node, gpu.name), "")

    def _holds(self, allocation: Allocation) -> tuple[str, frozenset[object]]:
        """The node, and the names of the devices that nobody else may have, or share."""
        devices = allocation.of_driver(self.driver)
        return allocation.node, frozenset(
            d.device if d.ask is NO_ASK else (d.device, d.ask)
            for d in devices
            if not d.admin_access
        )

    def _copied(self, name: str, copies: dict[str, NodeGpus]) -> NodeGpus | None:
        """The copy of a node whose claims may be changed; None without such a node."""
        if name not in copies and (node := self.nodes.get(name)) is not None:
            gpus = [
                replace(
                    state,
                    claims=dict(state.claims),
                    shares=dict(state.shares),
                    slice_shares=dict(state.slice_shares),
                )
                for state in node.gpus
            ]
            copies[name] = NodeGpus(node.inventory, gpus)
        return copies.get(name)

    def _attach(self, node: NodeGpus, ref: ClaimRef, allocation: Allocation) -> list[GpuState]:
        """Enter a claim at the GPUs that it holds; returns those."""
        touched = []
        for allocated in allocation.of_driver(self.driver):
            if allocated.admin_access:
                continue
            try:
                device = parse_device(allocated.device)
            except DeviceNameError:
                continue  # nothing of ours is called so; the node refuses it too
            name = str(device) if isinstance(device, GpuDevice) else device.gpu
            state = node.gpu(name)
            if state is not None:
                state.claims[ref.uid, device] = ref
                if state.gpu.sharing is not None:
                    share = state.share(allocated.ask, ref.namespace)
                    if share is not None:
                        state.shares[ref.uid] = share
                elif isinstance(device, MigDevice) and device.shared:
                    _attach_share(state, ref, device, allocated.ask)
                touched.append(state)
        return touched

    def _change(self, node: NodeGpus, states: Iterable[GpuState]) -> None:
        for state in {id(s): s for s in states}.values():
            self._leave(state)
            state.recount()
            self._enter([state])
        self._group_anew(node)

    def _group_anew(self, node: NodeGpus) -> None:
        fingerprints = tuple(state.fingerprint for state in node.gpus)
        if fingerprints != node.gpu_fingerprints:
            self._ungroup(node)
            node.gpu_fingerprints = fingerprints
            node.fingerprint = self._node_fingerprints.acquire(fingerprints)
            names, name = self.alike.get(node.fingerprint, ()), node.inventory.node
            at = bisect_left(names, name)
            self.alike[node.fingerprint] = (*names[:at], name, *names[at:])

    def _ungroup(self, node: NodeGpus) -> None:
        if not node.gpu_fingerprints:
            return
        names = self.alike[node.fingerprint]
        at = bisect_left(names, node.inventory.node)
        if len(names) > 1:
            self.alike[node.fingerprint] = names[:at] + names[at + 1 :]
        else:
            del self.alike[node.fingerprint]
        self._node_fingerprints.release(node.gpu_fingerprints)

    def _remove(self, name: str) -> None:
        self.schedulers.discard(name)
        node = self.nodes.pop(name, None)
        for state in node.gpus if node else ():
            self._leave(state)
        if node is not None:
            self._ungroup(node)

    def _enter(self, states: Iterable[GpuState]) -> None:
        for state in states:
            state.fingerprint = self._gpu_fingerprints.acquire(state.traits)
            self.candidates.enter(state)

    def _leave(self, state: GpuState) -> None:
        self._gpu_fingerprints.release(state.traits)
        self.candidates.leave(state)


def _detach(node: NodeGpus, claim_uid: str) -> list[GpuState]:
    """Enter a claim no more at the GPUs that it holds; returns those."""
    touched = []
    for state in node.gpus:
        held = [key for key, ref in state.claims.items() if ref.uid == claim_uid]
        for key in held:
            del state.claims[key]
            state.shares.pop(claim_uid, None)
            if state.slice_shares:
                state.slice_shares = {k: s for k, s in state.slice_shares.items() if k != key}
        if held:
            touched.append(state)
    return touched


def _attach_share(state: GpuState, ref: ClaimRef, device: MigDevice, ask: Ask) -> None:
    """Enter a claim's share of a slice, which has all of it where slices are not shared now."""
    geometry = state.gpu.geometry
    profile = geometry.by_id(device.profile_id) if geometry is not None else None
    memory = profile.memory_mib if profile is not None else 0
    sharing = state.gpu.slice_sharing or ShareOffer(1)
    state.slice_shares[ref.uid, device] = share_of(ask, sharing, memory, ref.namespace)


def _rooms_of(node: NodeGpus) -> list[Hashable]:
    return [state.room for state in node.gpus]


def _claim_uids(inventory: Inventory) -> Iterable[str]:
    return (i.claim.uid for g in inventory.gpus for i in g.instances if i.claim is not None)


def _profile_names(inventory: Inventory) -> Iterable[str]:
    geometries = {id(g.geometry): g.geometry for g in inventory.gpus if g.geometry is not None}
    return (p.name for g in geometries.values() for p in g.profiles if p.placements)


def _in_order(gpus: Iterable[Gpu]) -> list[Gpu]:
    return sorted(gpus, key=lambda g: g.minor)
