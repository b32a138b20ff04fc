"""Holdings of a GPU: the held parts, their holders, and reasons to give nothing of it out. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from dra.gpu.geometry import Geometry, Occupant, Placement
from dra.gpu.inventory import HARMFUL, ClaimRef, Gpu, Instance, InstanceState, Inventory
from dra.gpu.names import DeviceNameError, GpuDevice, MigDevice, parse_device

Device = GpuDevice | MigDevice
_LEAVING = (InstanceState.RECLAIMING, InstanceState.ORPHAN)


@dataclass(frozen=True, slots=True)
class Holding:
    """Part of a GPU that one holder takes; ``occupant`` None is the whole GPU.

    ``holder``: the claim's name, with the trouble if its slice is not in use; or words for an
    instance without a claim, whose ``claim_uid`` is empty. ``namespace``: the claim's; its name is
    not told to those who may not read there. ``leaving``: the instance is about to be removed.
    """

    holder: str
    claim_uid: str
    occupant: Occupant | None
    namespace: str = ""
    leaving: bool = False

    @property
    def placement(self) -> Placement | None:
        """Placement that it takes; None of the whole GPU."""
        return self.occupant.placement if self.occupant is not None else None


def why_blocked(gpu: Gpu, inventory: Inventory) -> str:
    """Short reason why nothing of ``gpu`` can be given out now; empty if something can."""
    if inventory.drain is not None and inventory.is_drained(gpu.name):
        why = f": {inventory.drain.reason}" if inventory.drain.reason else ""
        what = " ".join((inventory.node, *inventory.drain.gpus))
        faults: tuple[str, ...] = (gpu.unavailable,) if gpu.reason in HARMFUL else ()
        faults += gpu.health.notes if gpu.health is not None else ()
        return "; ".join((f"drained{why} (kubectl mig resume {what})", *faults))
    if not inventory.ready:
        return f"driver not ready: {inventory.message}" if inventory.message else "driver not ready"
    if gpu.mig_enabled != gpu.mig_pending:
        return "MIG mode change pending"
    return gpu.unavailable


def find_blocker(device: str, claim_uid: str, inventory: Inventory) -> str:
    """Reason why an allocated device cannot be made for its claim; empty if none shows.

    A drain is no such reason: it concerns new allocations.
    """
    if not inventory.ready:
        return f"driver not ready: {inventory.message}" if inventory.message else "driver not ready"
    try:
        wanted = parse_device(device)
    except DeviceNameError as error:
        return str(error)
    name = str(wanted) if isinstance(wanted, GpuDevice) else wanted.gpu
    gpu = inventory.gpu(name)
    if gpu is None:
        return f"{name} is not in this node"
    if isinstance(wanted, MigDevice) and not gpu.mig_enabled:
        return gpu.unavailable or f"MIG mode of {name} is off"
    return gpu.unavailable or _other_holder(gpu, wanted, claim_uid)


def _other_holder(gpu: Gpu, device: Device, claim_uid: str) -> str:
    """Holder of the place of ``device`` that is another claim or instance; empty if there is none.

    Holders of other shares of the same slice do not count.
    """
    wanted = occupant_of(device, gpu.geometry)
    for instance in gpu.instances:
        is_own = instance.claim is not None and instance.claim.uid == claim_uid
        if isinstance(device, MigDevice) and device.shared and instance.claim is not None:
            is_own = is_own or instance.occupant == wanted
        if not is_own and (wanted is None or instance.placement.overlaps(wanted.placement)):
            return _holder(instance, ended=False)
    alone = wanted is None and not gpu.shares
    return next((str(c) for c in gpu.claims if c.uid != claim_uid), "") if alone else ""


def held_by_claims(gpu: Gpu) -> Iterator[tuple[ClaimRef, Instance | None]]:
    """Claims of which the node has something on ``gpu``, with the instance; None if it has none."""
    yield from ((claim, None) for claim in gpu.claims)
    yield from ((i.claim, i) for i in gpu.instances if i.claim is not None)


def holdings(gpu: Gpu, claims: Mapping[tuple[str, Device], ClaimRef]) -> Iterable[Holding]:
    """Holdings of the instances of ``gpu``, then those of claims without an instance.

    ``claims`` are those that are allocated on the GPU. If a claim that the node has is not among
    them, it is gone or has given its devices back, and the node has still to remove them.
    """
    known = {claim.uid for claim in claims.values()}
    seen: set[tuple[str, Placement]] = set()
    for instance in gpu.instances:
        uid = instance.claim.uid if instance.claim else ""
        seen.add((uid, instance.placement))
        namespace = instance.claim.namespace if instance.claim else ""
        told = _holder(instance, ended=uid not in known)
        leaving = instance.state in _LEAVING
        yield Holding(told, uid, instance.occupant, namespace, leaving)
    for claim in gpu.claims:
        if claim.uid not in known:
            yield Holding(f"{claim} (ended, and about to go)", claim.uid, None, claim.namespace)
    for (_, device), claim in claims.items():
        occupant = occupant_of(device, gpu.geometry)
        if occupant is None or (claim.uid, occupant.placement) not in seen:
            yield Holding(str(claim), claim.uid, occupant, claim.namespace)


def _holder(instance: Instance, *, ended: bool) -> str:
    state = instance.state.value
    if instance.claim is None:
        # Of a foreign instance the message names a pod, which other tenants are not told.
        is_told = instance.message and instance.state is not InstanceState.FOREIGN
        why = f" ({instance.message})" if is_told else ""
        return f"{state} instance at {instance.placement}{why}"
    if instance.state in (InstanceState.PREPARING, InstanceState.PREPARED):
        if ended:
            return f"{instance.claim} (ended, its slice is about to go)"
        return str(instance.claim)
    why = f"{state}: {instance.message}" if instance.message else state
    return f"{instance.claim} ({why})"


def occupant_of(device: Device, geometry: Geometry | None) -> Occupant | None:
    """Occupant of an allocated device; None for a whole GPU, or without a geometry.

    A device of a profile that the GPU lacks takes all memory slices from its start on.
    """
    if isinstance(device, GpuDevice) or geometry is None:
        return None
    profile = geometry.by_id(device.profile_id)
    if profile is None or not profile.memory_slices:
        size = max(1, geometry.memory_slices - device.start)
        return Occupant(Placement(device.start, size))
    return Occupant(Placement(device.start, profile.memory_slices), profile.id)
