"""Assembly of a new simulated machine from the GPUs that are wanted."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from uuid import UUID, uuid4, uuid5

from sim.nvml.cabi import RefusedError, Return
from sim.nvml.products import (
    ComputeInstanceProfile,
    GpuInstanceProfile,
    Product,
    Variants,
    load_product,
)
from sim.nvml.state import ComputeInstance, Gpu, GpuInstance, KeptPlace, MachineState

DRIVER_VERSION = "570.86.15"
_CUDA_VERSION = 12080


@dataclass(frozen=True, slots=True)
class GpuSpec:
    """One GPU to build: a bundled product's name, a product file, or a product.

    `minor` and `uuid` are chosen when not given; `mig` is the MIG mode at the start.
    """

    product: str | Path | Product
    mig: bool = True
    minor: int | None = None
    uuid: str = ""


def new_machine(
    gpus: list[GpuSpec],
    *,
    host_root: Path,
    driver_version: str,
    variants: Variants,
) -> tuple[MachineState, list[Product]]:
    """The state of a machine that has just booted for the first time, and its products.

    Raises:
        LookupError: a product that is not bundled.
    """
    products = [
        s.product if isinstance(s.product, Product) else load_product(s.product) for s in gpus
    ]
    state = MachineState(
        boot_id=str(uuid4()),
        host_root=str(host_root.absolute()),
        driver_version=driver_version,
        cuda_version=_CUDA_VERSION,
        variants=variants,
        makes_nodes=variants.host_nodes == "made",
        gpus=[
            _new_gpu(spec, product, index)
            for index, (spec, product) in enumerate(zip(gpus, products, strict=True))
        ],
    )
    return state, products


def _new_gpu(spec: GpuSpec, product: Product, index: int) -> Gpu:
    mig = spec.mig and bool(product.gi_profiles)
    return Gpu(
        uuid=spec.uuid or f"GPU-{uuid4()}",
        product=product.product,
        minor=index if spec.minor is None else spec.minor,
        pci_bus_id=f"00000000:{0x07 + 8 * index:02X}:00.0",
        serial=f"{1320000000000 + index}",
        mig=mig,
        mig_pending=mig,
    )


MAX_GPU_INSTANCES = 15
"""GPU-instance ids are 0 to 14: the driver's capability minors leave room for no more."""

_BESIDE_THE_PLAIN = (7, 8)
"""1_SLICE_REV1 and 7_SLICE_NVL: compute-instance profiles of the same slice count as plain ones."""

_ENGINES = ("copy_engines", "decoders", "encoders", "jpeg", "ofa", "multiprocessors")

_PLACES = UUID("5b7f6a0e-58a5-4d1c-9a5b-0f6f0c1f3f10")


def require_mig(gpu: Gpu) -> None:
    """Refuses with NOT_SUPPORTED unless MIG mode is on."""
    if not gpu.mig:
        raise RefusedError(Return.NOT_SUPPORTED)


def profile_of(product: Product, profile_id: int) -> GpuInstanceProfile:
    """The GPU-instance profile with this id, or INVALID_ARGUMENT."""
    profile = product.profile(profile_id)
    if profile is None:
        raise RefusedError(Return.INVALID_ARGUMENT)
    return profile


def free_starts(gpu: Gpu, product: Product, profile: GpuInstanceProfile) -> list[int]:
    """Starts at which one more instance of the profile fits now."""
    live = [profile_of(product, g.profile) for g in gpu.gpu_instances]
    if sum(p.id == profile.id for p in live) >= profile.instance_count:
        return []
    if sum(p.slice_count for p in live) + profile.slice_count > product.compute_slices:
        return []
    for engine in _ENGINES:
        used = sum(getattr(p, engine) for p in live)
        if used + getattr(profile, engine) > getattr(product.whole, engine):
            return []
    return [
        start
        for start in profile.starts
        if all(
            start + profile.size <= g.start or g.start + g.size <= start for g in gpu.gpu_instances
        )
    ]


def remaining_capacity(gpu: Gpu, product: Product, profile: GpuInstanceProfile) -> int:
    """Instances of the profile that still fit (nvmlDeviceGetGpuInstanceRemainingCapacity)."""
    trial = Gpu(gpu.uuid, gpu.product, gpu.minor, gpu.pci_bus_id, gpu.serial)
    trial.gpu_instances = list(gpu.gpu_instances)
    count = 0
    while starts := free_starts(trial, product, profile):
        trial.gpu_instances.append(GpuInstance(0, 0, profile.id, min(starts), profile.size))
        count += 1
    return count


def create_gpu_instance(
    state: MachineState, gpu: Gpu, product: Product, *, profile_id: int, start: int | None = None
) -> GpuInstance:
    """Creates a GPU instance at `start`, or where the driver likes when it is None.

    Refuses with INVALID_ARGUMENT for a start that the profile does not have, and with
    INSUFFICIENT_RESOURCES for one that is taken or whose engines are used up.
    """
    require_mig(gpu)
    profile = profile_of(product, profile_id)
    if start is not None and start not in profile.starts:
        raise RefusedError(Return.INVALID_ARGUMENT)
    free = free_starts(gpu, product, profile)
    if start is None:
        start = next((s for s in profile.driver_order or profile.starts if s in free), None)
    if start is None or start not in free:
        raise RefusedError(Return.INSUFFICIENT_RESOURCES)
    identifier = _gpu_instance_id(gpu, product, profile, start=start)
    instance = GpuInstance(state.new_key(), identifier, profile_id, start, profile.size)
    gpu.gpu_instances.append(instance)
    return instance


def _gpu_instance_id(gpu: Gpu, product: Product, profile: GpuInstanceProfile, *, start: int) -> int:
    """An id that looks like a driver's: by position, but by order of creation for halves."""
    used = {g.id for g in gpu.gpu_instances}
    parts = product.memory_slices // profile.size
    by_position = parts - 1 + start // profile.size
    wanted = [1, 2] if parts == 2 else [by_position]  # noqa: PLR2004 - halves of the GPU
    candidates = [*wanted, *range(MAX_GPU_INSTANCES)]
    free = [i for i in candidates if i < MAX_GPU_INSTANCES and i not in used]
    if not free:
        raise RefusedError(Return.INSUFFICIENT_RESOURCES)
    return int(free[0])


def destroy_gpu_instance(gpu: Gpu, instance: GpuInstance) -> None:
    """Removes a GPU instance; IN_USE while it has compute instances or processes."""
    busy = any(p.gpu_instance == instance.id for p in gpu.processes)
    if busy or instance.compute_instances:
        raise RefusedError(Return.IN_USE)
    gpu.gpu_instances.remove(instance)


def destroyed_in_part(state: MachineState, gpu: Gpu, instance: GpuInstance) -> bool:
    """True if GSP has not followed: a GPU instance is deleted on the CPU's side first, then by GSP.

    Source of the order: open-gpu-kernel-modules 595.45.04, kernel_mig_manager.c:7672; what NVML
    answers then, and to creations, is inferred.
    """
    if not state.variants.gsp_keeps or gpu.failed_destroys:
        return False
    gpu.failed_destroys += 1
    gpu.kept.append(KeptPlace(instance.start, instance.size, state.variants.gsp_keeps))
    return True


def refused_by_gsp(gpu: Gpu, product: Product, *, profile_id: int, start: int | None) -> bool:
    """True if a creation fails as GSP still holds some of its place; one refusal less is left."""
    size = profile_of(product, profile_id).size
    for kept in gpu.kept:
        if start is not None and start < kept.start + kept.size and kept.start < start + size:
            kept.refusals -= 1
            gpu.kept = [k for k in gpu.kept if k.refusals > 0]
            return True
    return False


def _free_compute_start(
    instance: GpuInstance, parent: GpuInstanceProfile, profile: ComputeInstanceProfile
) -> int | None:
    for start in range(parent.slice_count - profile.slice_count + 1):
        end = start + profile.slice_count
        if all(end <= c.start or c.start + c.size <= start for c in instance.compute_instances):
            return start
    return None


def compute_profile_of(parent: GpuInstanceProfile, profile_id: int) -> ComputeInstanceProfile:
    """The compute-instance profile with this id, or INVALID_ARGUMENT."""
    profile = parent.compute_profile(profile_id)
    if profile is None:
        raise RefusedError(Return.INVALID_ARGUMENT)
    return profile


def is_creatable(state: MachineState, profile: ComputeInstanceProfile) -> bool:
    """True if the driver makes compute instances of a profile that it reports."""
    beside = profile.enum in _BESIDE_THE_PLAIN and state.variants.full_compute == "refused"
    return profile.creatable and not beside


def create_compute_instance(
    state: MachineState, gpu: Gpu, product: Product, *, instance: GpuInstance, profile_id: int
) -> ComputeInstance:
    """Creates a compute instance with a fresh UUID."""
    parent = profile_of(product, instance.profile)
    profile = compute_profile_of(parent, profile_id)
    if not is_creatable(state, profile):
        raise RefusedError(Return.NOT_SUPPORTED)
    start = _free_compute_start(instance, parent, profile)
    if start is None:
        raise RefusedError(Return.INSUFFICIENT_RESOURCES)
    identifiers = {c.id for c in instance.compute_instances}
    created = ComputeInstance(
        key=state.new_key(),
        id=next(i for i in range(len(identifiers) + 1) if i not in identifiers),
        profile=profile_id,
        start=start,
        size=profile.slice_count,
        uuid=f"MIG-{_uuid(state, gpu, instance, start=start)}",
        subscribed=state.variants.monitored,
    )
    instance.compute_instances.append(created)
    return created


def _uuid(state: MachineState, gpu: Gpu, instance: GpuInstance, *, start: int) -> UUID:
    """A UUID for a compute instance: a new one, or that of its place."""
    if state.variants.mig_uuid == "new":
        return uuid4()
    return uuid5(_PLACES, f"{gpu.uuid} {instance.id} {instance.start} {start}")


def destroy_compute_instance(gpu: Gpu, instance: GpuInstance, compute: ComputeInstance) -> None:
    """Removes a compute instance; IN_USE while a process runs on it."""
    holder = (instance.id, compute.id)
    if any((p.gpu_instance, p.compute_instance) == holder for p in gpu.processes):
        raise RefusedError(Return.IN_USE)
    instance.compute_instances.remove(compute)


def is_subscribed(compute: ComputeInstance) -> bool:
    """True if a monitor keeps a compute instance from being destroyed; one refusal fewer is left.

    Source: open-gpu-kernel-modules 595.45.04, kernel_mig_manager.c:5627; NVIDIA/DCGM#276.
    """
    compute.subscribed -= 1
    return compute.subscribed >= 0


def set_mig_mode(  # noqa: PLR0913 - a GPU, what is asked of it, and by whom
    state: MachineState, gpu: Gpu, product: Product, *, enable: bool, held: bool, resets: bool
) -> Return:
    """Asks for MIG mode; the answer is NVML's activation status.

    The mode stays pending with IN_USE while instances or processes are on the GPU, or it is
    ``held`` by another client of the driver (which a variant refuses altogether), and where the
    architecture needs a reset with RESET_REQUIRED unless the driver ``resets`` it by itself.
    """
    if not product.gi_profiles:
        raise RefusedError(Return.NOT_SUPPORTED)
    if held and gpu.mig != enable and state.variants.mode_held == "refused":
        raise RefusedError(Return.IN_USE)
    gpu.mig_pending = enable
    if gpu.mig == enable:
        return Return.SUCCESS
    if gpu.gpu_instances or gpu.processes or held:
        return Return.IN_USE
    if product.mig_mode_needs_reset and not resets:
        return Return.RESET_REQUIRED
    gpu.mig = enable
    return Return.SUCCESS
