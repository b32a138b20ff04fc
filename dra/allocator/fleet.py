"""All GPUs that the controller allocates or chooses, from MigNodes and allocations.

GPUs in equal states form a group, and so do nodes whose GPUs are in equal states: a cluster has
thousands of GPUs in a few hundred states, and a decision looks at each state once.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from dra.allocator.gpustate import GpuId, GpuState, Held, Holder, devices_held
from dra.allocator.moves import Move, MoveTable
from dra.allocator.quotas import Quotas
from dra.allocator.score import Census, Demand, Weights, scarcity_weights
from dra.cel.kinds import Kinds
from dra.cel.offers import GpuKind
from dra.claims.allocation import Allocation
from dra.claims.classes import Quota
from dra.gpu.holdings import Device, held_by_claims, why_blocked
from dra.gpu.inventory import AllocatorKind, ClaimRef, Gpu, Inventory
from dra.gpu.names import MigDevice
from dra.gpu.shares import NO_ASK

GpuFingerprints = tuple[Hashable, ...]
Claims = Mapping[tuple[str, Device], Held]
"""Claims on a GPU by UID and device."""


@dataclass(slots=True, eq=False)
class NodeGpus:
    """A node's inventory, and the states of its GPUs in the order of their numbers.

    ``fingerprints``: those of ``gpus``; what fits one node, fits another with equal ones.
    """

    inventory: Inventory
    gpus: Sequence[GpuState]
    fingerprints: GpuFingerprints = ()

    def gpu(self, name: str) -> GpuState | None:
        """The state of the GPU called ``gpu-<minor>``; None if the node has none."""
        return next((g for g in self.gpus if g.gpu.name == name), None)


@dataclass(slots=True, eq=False)
class GpuGroup:
    """GPUs in equal states. ``state``: that of one; ``members``: all, by node and number.

    ``moves``: by profile id, the ways to make a slice on each of the GPUs now, lowest start first;
    without the profiles of which none can be made.
    """

    state: GpuState
    members: list[GpuId] = field(default_factory=list)
    moves: Mapping[int, tuple[Move, ...]] = field(init=False)

    def __post_init__(self) -> None:
        self.moves = self.state.moves()


class _NodeFacts(NamedTuple):
    """Facts of a node: UIDs of claims with devices there, its profiles' names, its GPUs."""

    held_claims: frozenset[str]
    profiles: frozenset[str]
    gpus: tuple[Gpu, ...]


class Fleet:
    """The GPUs of every node, and who holds them.

    ``nodes``: the nodes by name; ``schedulers``: names of those whose GPUs kube-scheduler
    allocates, for pods that the controller sends there. ``groups``: GPUs by fingerprint.
    ``alike``: by the fingerprints of a node's GPUs, the names of the nodes that have these, in
    order. ``makers``: by kind and profile id, the groups whose GPUs could make a slice of the
    profile now. ``whole``: number of GPUs given out whole; ``shared``: of those that several claims
    may share, whole or in slices. ``quotas``: sums of what namespaces hold. Not thread-safe.
    """

    def __init__(self, driver: str, kinds: Kinds, demand: Demand | None = None) -> None:
        self.driver = driver
        self.kinds = kinds
        self.demand = demand or Demand()
        self.quotas = Quotas(driver, kinds)
        self.nodes: dict[str, NodeGpus] = {}
        self.schedulers: set[str] = set()
        self.groups: dict[Hashable, GpuGroup] = {}
        self.alike: dict[GpuFingerprints, tuple[str, ...]] = {}
        self.makers: dict[GpuKind, dict[int, dict[Hashable, GpuGroup]]] = {}
        self.whole = 0
        self.shared = 0
        self._idle = 0
        self._facts: dict[str, _NodeFacts] = {}
        self._numbers: dict[Hashable, int] = {}
        self._last_number = 0
        self._census: dict[MoveTable, Census] = {}
        self._weights: dict[MoveTable, tuple[int, Weights]] = {}
        self._holders: dict[str, Holder | None] = {}
        self._by_node: dict[str, set[str]] = {}
        self._left_out: dict[tuple[str, str], str] = {}
        self._base: Fleet | None = None

    def set_inventory(self, inventory: Inventory) -> bool:
        """Take a node's inventory; returns True when that may have made room.

        Raises:
            TooManyStatesError: a geometry has more states than that of any real GPU.
        """
        name = inventory.node
        if inventory.driver != self.driver:
            return self.drop_inventory(name)
        self._facts[name] = _facts(inventory)
        if self.quotas.limits:
            self._count_anew(self._by_node.get(name, ()))
            self.quotas.leave(name, inventory.gpus, self._holders)
        before = self.nodes.get(name)
        if before is not None and before.inventory == inventory:
            return False
        gpus = sorted(inventory.gpus, key=lambda g: g.minor)
        claims: list[dict[tuple[str, Device], Held]] = [{} for _ in gpus]
        for uid in self._by_node.get(name, ()):
            known = self.holder(uid)
            for index, device, held in devices_held(gpus, self.driver, known) if known else ():
                claims[index][uid, device] = held
        node = NodeGpus(
            inventory,
            [
                GpuState(
                    gpu, inventory, self.kinds.of(gpu, inventory), self._why(gpu, inventory), on_it
                )
                for gpu, on_it in zip(gpus, claims, strict=True)
            ],
        )
        self._put(name, None)
        if inventory.allocator is AllocatorKind.CONTROLLER:
            self.schedulers.discard(name)
        else:
            self.schedulers.add(name)
        self._put(name, node)
        if before is None or before.inventory.capabilities != inventory.capabilities:
            return True
        return [s.room for s in before.gpus] != [s.room for s in node.gpus]

    def drop_inventory(self, node: str) -> bool:
        """Forget a node; returns False, because that makes no room."""
        self._put(node, None)
        self.schedulers.discard(node)
        self._facts.pop(node, None)
        self.quotas.leave(node, (), self._holders)
        return False

    def leave_out(self, node: str, gpu: str, why: str) -> None:
        """Give out nothing of ``gpu-<minor>`` of a node for the reason ``why``; "" ends that."""
        if why:
            self._left_out[node, gpu] = why
        else:
            self._left_out.pop((node, gpu), None)
        known = self.nodes.get(node)
        if known is not None:
            gpus = [
                replace(s, blocked=self._why(s.gpu, s.inventory)) if s.gpu.name == gpu else s
                for s in known.gpus
            ]
            self._put(node, NodeGpus(known.inventory, gpus))

    def hold(self, ref: ClaimRef, allocation: Allocation) -> None:
        """Count what a claim holds; an earlier allocation of the same claim is replaced."""
        before = self.holder(ref.uid)
        if before is not None and self._holds(before[1]) == self._holds(allocation):
            self._holders[ref.uid] = ref, allocation
        else:
            self._exchange([ref.uid], [(ref, allocation)])
        self._count_anew([ref.uid])

    def release(self, claim_uid: str) -> bool:
        """Count what the claim holds no longer; returns True when it was counted."""
        was_counted = self.counts(claim_uid)
        self._exchange([claim_uid], ())
        return was_counted

    def limit(self, device_class: str, quota: Quota | None) -> None:
        """Set the quota of a class; what namespaces hold of classes with one is counted."""
        if self.quotas.limit(device_class, quota):
            self._count_anew(self._holders)
            for name, facts in self._facts.items():
                self.quotas.leave(name, facts.gpus, self._holders)

    def gpus_of(self, node: str) -> tuple[Gpu, ...]:
        """The GPUs of a node, whoever allocates them; none without a MigNode of ours."""
        known = self._facts.get(node)
        return known.gpus if known is not None else ()

    def without(
        self,
        claim_uids: Collection[str],
        *,
        holding: Iterable[Holder] = (),
        unprepared: bool = False,
    ) -> Fleet:
        """A supposed fleet: these claims hold nothing, and those of ``holding`` what it says.

        With ``unprepared`` their nodes have no slices of ``claim_uids`` any more, either. Nothing
        of this fleet changes. The supposed one shares all but the GPUs in question with it, and is
        valid until this fleet changes.
        """
        supposed = Fleet(self.driver, self.kinds, self.demand)
        supposed._base = self
        supposed.nodes, supposed.groups = dict(self.nodes), dict(self.groups)
        supposed.alike, supposed.schedulers = dict(self.alike), self.schedulers
        supposed.makers = {
            kind: {profile: dict(groups) for profile, groups in known.items()}
            for kind, known in self.makers.items()
        }
        supposed.whole, supposed.shared, supposed._idle = self.whole, self.shared, self._idle
        supposed._facts, supposed._numbers = self._facts, dict(self._numbers)
        supposed._census, supposed._weights = dict(self._census), dict(self._weights)
        added = [*holding]
        gone = [*claim_uids, *(ref.uid for ref, _ in added)]
        supposed.quotas = self.quotas.without(gone)
        if unprepared:
            supposed._unprepare({*claim_uids})
        supposed._exchange(gone, added)
        return supposed

    def _unprepare(self, gone: AbstractSet[str]) -> None:
        for name in [name for name in self.nodes if gone & self._facts[name].held_claims]:
            node = self.nodes[name]
            self._put(name, NodeGpus(node.inventory, [s.unprepared(gone) for s in node.gpus]))

    def state(self, gpu: GpuId) -> GpuState:
        """The state of a GPU that is known."""
        for state in self.nodes[gpu.node].gpus:
            if state.gpu.minor == gpu.minor:
                return state
        raise KeyError(gpu)

    def weights(self, table: MoveTable) -> Weights:
        """Weights of slices of a geometry now."""
        known = self._weights.get(table)
        if known is None or known[0] != self.demand.observed:
            census = self._census.get(table) or Census(table)
            found = scarcity_weights(census, self.demand.shares(table.geometry))
            known = self._weights[table] = self.demand.observed, found
        return known[1]

    @property
    def is_all_schedulers(self) -> bool:
        """True if kube-scheduler allocates every node, and there is one."""
        return 0 < len(self.schedulers) == len(self.nodes)

    @property
    def has_idle(self) -> bool:
        """True if there are idle slices on any GPU that takes slices."""
        return bool(self._idle)

    def holder(self, uid: str) -> Holder | None:
        """The claim and the devices that count as its own; None if there are none."""
        if self._base is not None and uid not in self._holders:
            return self._base.holder(uid)
        return self._holders.get(uid)

    def counts(self, claim_uid: str) -> bool:
        """True if a claim is counted: it has an allocation, or one is being written for it."""
        return self.holder(claim_uid) is not None

    def held_claims(self, node: str) -> frozenset[str] | None:
        """UIDs of the claims that the node has devices of, None without a MigNode of ours.

        Known also of nodes that kube-scheduler allocates: claims of an earlier mode may be on them.
        """
        known = self._facts.get(node)
        return known.held_claims if known is not None else None

    def claims_on(self, node: str) -> frozenset[str]:
        """UIDs of the claims that are allocated on ``node``."""
        return frozenset(self._by_node.get(node, ()))

    def profiles_of(self, node: str) -> frozenset[str]:
        """Names of the profiles that a node's GPUs have, whoever allocates them."""
        return self._facts[node].profiles if node in self._facts else frozenset()

    def profiles_by_node(self) -> Collection[frozenset[str]]:
        """Names of the profiles that the GPUs of each node have, whoever allocates them."""
        return [facts.profiles for facts in self._facts.values()]

    def profiles(self) -> frozenset[str]:
        """Names of the profiles that any node's GPUs have."""
        return frozenset().union(*{facts.profiles for facts in self._facts.values()})

    def profiles_in(self, allocation: Allocation) -> Iterator[str]:
        """The profile names of the slices in an allocation of ours, where its node is known.

        Shares are left out: most of them are of a slice that is there.
        """
        known = self.nodes.get(allocation.node)
        gpus = [state.gpu for state in known.gpus] if known is not None else []
        for index, device, _ in devices_held(gpus, self.driver, (_NOBODY, allocation)):
            geometry = gpus[index].geometry
            if isinstance(device, MigDevice) and not device.shared and geometry is not None:
                profile = geometry.by_id(device.profile_id)
                if profile is not None:
                    yield profile.name

    def _why(self, gpu: Gpu, inventory: Inventory) -> str:
        return why_blocked(gpu, inventory) or self._left_out.get((inventory.node, gpu.name), "")

    def _holds(self, allocation: Allocation) -> tuple[str, frozenset[object]]:
        """The node, and the devices that the allocation holds, a share with what it states."""
        devices = allocation.of_driver(self.driver)
        return allocation.node, frozenset(
            d.device if d.ask is NO_ASK else (d.device, d.ask)
            for d in devices
            if not d.admin_access
        )

    def _note(self, uid: str, holder: Holder | None) -> None:
        """Note what a claim holds; a supposed fleet keeps no claims by node."""
        if self._base is not None:
            self._holders[uid] = holder
            return
        before = self._holders.pop(uid, None)
        if before is not None:
            if holder is None and uid in (self.held_claims(before[1].node) or ()):
                self.quotas.keep(before[1].node, before[0])
            else:
                self.quotas.enter(before[0], None, ())
            on_node = self._by_node[before[1].node]
            on_node.discard(uid)
            if not on_node:
                del self._by_node[before[1].node]
        if holder is not None:
            self._holders[uid] = holder
            self._by_node.setdefault(holder[1].node, set()).add(uid)

    def _count_anew(self, claim_uids: Iterable[str]) -> None:
        """Let the quotas count anew what claims hold on their nodes."""
        for ref, allocation in filter(None, map(self.holder, claim_uids)):
            self.quotas.enter(ref, allocation, self.gpus_of(allocation.node))

    def _exchange(self, gone: Iterable[str], added: Iterable[Holder]) -> None:
        """Remove the claims ``gone`` from their GPUs, and enter those ``added`` at theirs."""
        changed: dict[str, dict[int, Claims]] = {}
        for uid in gone:
            known = self.holder(uid)
            if known is None:
                continue
            self._note(uid, None)
            node = self.nodes.get(known[1].node)
            held = changed.setdefault(known[1].node, {})
            for index, state in enumerate(node.gpus if node is not None else ()):
                claims = held.get(index, state.claims)
                if any(key[0] == uid for key in claims):
                    held[index] = {key: each for key, each in claims.items() if key[0] != uid}
        for holder in added:
            ref, allocation = holder
            self._note(ref.uid, holder)
            node = self.nodes.get(allocation.node)
            held = changed.setdefault(allocation.node, {})
            gpus = [state.gpu for state in node.gpus] if node is not None else []
            for index, device, each in devices_held(gpus, self.driver, holder):
                before = held.get(index, node.gpus[index].claims if node is not None else {})
                held[index] = {**before, (ref.uid, device): each}
        for name, held in changed.items():
            self._set_claims(name, held)

    def _set_claims(self, name: str, held: Mapping[int, Claims]) -> None:
        """Replace the claims on a node's GPUs: ``held`` has the new ones by index of the GPU."""
        node = self.nodes.get(name)
        if node is not None and held:
            states = [*node.gpus]
            for index, claims in held.items():
                if claims != states[index].claims:
                    states[index] = states[index].with_claims(claims)
            self._put(name, NodeGpus(node.inventory, states))

    def _put(self, name: str, node: NodeGpus | None) -> None:
        """Replace what is known of a node; ``node`` is None when it is gone."""
        before = self.nodes.get(name)
        if node is not None and name in self.schedulers:
            node.gpus = [*_as_published(node.gpus)]
        gpus, former = node.gpus if node else (), before.gpus if before else ()
        if before is not None and node is not None and [*map(id, gpus)] == [*map(id, former)]:
            return
        kept = {*map(id, gpus)} & {*map(id, former)}
        for state in gpus:
            if id(state) not in kept:
                self._enter(state)
        for state in former:
            if id(state) not in kept:
                self._leave(state)
        fingerprints = tuple(state.fingerprint for state in gpus)
        self._note_alike(name, before.fingerprints if before is not None else (), fingerprints)
        if node is None:
            self.nodes.pop(name, None)
        else:
            node.fingerprints = fingerprints
            self.nodes[name] = node

    def _note_alike(self, name: str, before: GpuFingerprints, after: GpuFingerprints) -> None:
        if before == after:
            return
        if before:
            names = self.alike[before]
            at = bisect_left(names, name)
            if len(names) > 1:
                self.alike[before] = names[:at] + names[at + 1 :]
            else:
                del self.alike[before]
        if after:
            names = self.alike.get(after, ())
            at = bisect_left(names, name)
            self.alike[after] = (*names[:at], name, *names[at:])

    def _enter(self, state: GpuState) -> None:
        fingerprint: Hashable = self._numbers.get(state.traits)
        if fingerprint is None and self._base is not None:
            # The live fleet would not know of a new number, and could give it to another state.
            fingerprint = state.traits
        elif fingerprint is None:
            self._last_number += 1
            fingerprint = self._numbers[state.traits] = self._last_number
        state.fingerprint = fingerprint
        group = self.groups.get(fingerprint)
        if group is None or self._base is not None:
            group = self._set_group(fingerprint, state, group.members if group is not None else ())
        insort(group.members, state.id)
        self._count(state, 1)

    def _set_group(
        self, fingerprint: Hashable, state: GpuState, members: Iterable[GpuId]
    ) -> GpuGroup:
        group = self.groups[fingerprint] = GpuGroup(state, [*members])
        known = self.makers.setdefault(state.kind, {}) if group.moves else {}
        for profile in group.moves:
            known.setdefault(profile, {})[fingerprint] = group
        return group

    def _forget_maker(self, state: GpuState, group: GpuGroup) -> None:
        known = self.makers.get(state.kind, {})
        for profile in group.moves:
            del known[profile][state.fingerprint]
            if not known[profile]:
                del known[profile]
        if not known:
            self.makers.pop(state.kind, None)

    def _leave(self, state: GpuState) -> None:
        group = self.groups[state.fingerprint]
        if self._base is not None:
            group = self._set_group(state.fingerprint, group.state, group.members)
        del group.members[bisect_left(group.members, state.id)]
        if not group.members:
            del self.groups[state.fingerprint]
            self._numbers.pop(state.traits, None)
            self._forget_maker(state, group)
        self._count(state, -1)

    def _count(self, state: GpuState, number: int) -> None:
        table = state.table
        if table is None:
            self.whole += number
            self.shared += number * bool(state.gpu.shares)
        elif state.takes_slices:
            self.shared += number * bool(state.gpu.slice_shares)
            self._idle += number * bool(state.idle)
            census = self._census.get(table) or Census(table)
            if self._base is not None:
                census = replace(census, feasible=[*census.feasible])
            census.add(state.usage, count=number)
            self._census[table] = census
            self._weights.pop(table, None)
            if not census.gpus:
                del self._census[table]


def _as_published(gpus: Sequence[GpuState]) -> Iterator[GpuState]:
    """The GPUs of a node that kube-scheduler allocates, each with what others of the node give.

    For each profile the published list has GPU after GPU (``dra.resourceslices.partitions``). A
    slice that is shared may come before another profile's on an earlier GPU.
    """
    passed = frozenset[str]()
    before = tuple(d for s in gpus if not s.gpu.shares for d in s.shared_devices())
    for state in gpus:
        is_same = state.passed == passed and state.before == before
        yield state if is_same else replace(state, passed=passed, before=before)
        passed |= state.gives_first()
        if state.gpu.shares:
            before = (*before, *state.shared_devices())


_NOBODY = ClaimRef("", "", "")


def _facts(inventory: Inventory) -> _NodeFacts:
    claims = (ref.uid for gpu in inventory.gpus for ref, _ in held_by_claims(gpu))
    geometries = {id(g.geometry): g.geometry for g in inventory.gpus if g.geometry is not None}
    profiles = (p.name for g in geometries.values() for p in g.profiles if p.placements)
    return _NodeFacts(frozenset(claims), frozenset(profiles), inventory.gpus)
