"""Products, read from JSON: fixtures of real GPUs, or any invented one.

No code knows a product: a machine keeps copies of its products beside its state. In the fixtures
`assumed` names each value that no published print confirms and says how it was filled in;
`driver_order` is the order in which the driver tries starts when the caller names none (the first
two starts of A100's 1g profile and the first one of 2g and 3g are published, the rest is assumed).
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from api.decoding import decodable

FIXTURES = Path(__file__).parent / "fixtures"

Architecture = Literal["ampere", "ada", "hopper", "blackwell", "unknown"]
"""``unknown`` is what NVML answers of a GPU that is newer than it."""

Brand = Literal["nvidia", "nvidia-rtx", "tesla"]


class ComputeInstanceProfile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One row of nvmlGpuInstanceGetComputeInstanceProfileInfo.

    `creatable` is false for a profile that drivers report and then refuse to create.
    """

    name: str
    enum: int
    id: int
    slice_count: int
    instance_count: int
    multiprocessors: int
    creatable: bool = True
    assumed: dict[str, str] = {}


class GpuInstanceProfile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One row of nvmlDeviceGetGpuInstanceProfileInfo: `enum` asks for it, `id` creates with it.

    `starts` and `size` are in memory slices, `memory_mib` is what NVML reports.
    """

    name: str
    enum: int
    id: int
    slice_count: int
    instance_count: int
    memory_mib: int
    multiprocessors: int
    copy_engines: int
    decoders: int
    encoders: int
    jpeg: int
    ofa: int
    p2p: bool
    starts: tuple[int, ...]
    size: int
    ci_profiles: tuple[ComputeInstanceProfile, ...]
    driver_order: tuple[int, ...] = ()
    assumed: dict[str, str] = {}

    def compute_profile(self, profile_id: int) -> ComputeInstanceProfile | None:
        """The compute-instance profile with this id, if the GPU instance offers it."""
        return next((p for p in self.ci_profiles if p.id == profile_id), None)


@decodable
class Product(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One GPU product. No `gi_profiles` means that it cannot do MIG."""

    product: str
    name: str
    architecture: Architecture
    cuda_compute_capability: tuple[int, int]
    brand: Brand
    pci_device_id: str
    memory_total_mib: int
    memory_slices: int
    compute_slices: int
    mig_mode_needs_reset: bool
    mig_mode_survives_reboot: bool
    gi_profiles: tuple[GpuInstanceProfile, ...] = ()
    assumed: dict[str, str] = {}

    def profile(self, profile_id: int) -> GpuInstanceProfile | None:
        """The GPU-instance profile with this id."""
        return next((p for p in self.gi_profiles if p.id == profile_id), None)

    @property
    def whole(self) -> GpuInstanceProfile:
        """The profile that takes the whole GPU: its engines are the GPU's engines."""
        return max(self.gi_profiles, key=lambda p: (p.size, p.slice_count))


class ContentError(ValueError):
    """A product's file that cannot be used; the message names file, field and allowed values."""


def product_names() -> list[str]:
    """Names of the bundled fixtures, for `--gpu` and messages."""
    return sorted(path.stem for path in FIXTURES.glob("*.json"))


def load_product(product: str | Path) -> Product:
    """Reads a product from a bundled fixture's name or from a JSON file's path.

    Raises:
        LookupError: no such fixture or file; the message lists the fixtures.
        ContentError: the file is not one of a product, or contradicts itself; the message names
            file, field and allowed values.
    """
    path = FIXTURES / f"{product}.json" if isinstance(product, str) else product
    if not path.is_file():
        raise LookupError(
            f"no GPU product {str(product)!r}; bundled products: {', '.join(product_names())}"
        )
    try:
        loaded = msgspec.json.decode(path.read_bytes(), type=Product)
    except msgspec.MsgspecError as error:
        raise ContentError(f"{path} is no file of a GPU product: {error}") from error
    if isinstance(product, str) and loaded.product != product:
        raise ContentError(
            f"{path}: product: {loaded.product!r} is not the file's name; write {product!r}"
        )
    return loaded


class Variants(msgspec.Struct, frozen=True, kw_only=True):
    """One way in which a driver may behave; the defaults are what sources make most likely.

    `mig_uuid`: the UUID of a new MIG device is `new` each time, or a function of its `place`.
    `lookup_by_uuid`: nvmlDeviceGetHandleByUUID answers GPU_IS_LOST only for the GPU that is lost
    (`own`), or as soon as `any` GPU is, as nvml.h says.
    `processes`: NVML names processes to the plugin (`seen`), or none, as to a container without the
    host's pid namespace (`hidden`).
    `full_compute`: compute-instance profiles beside the plain one of the same slice count (enums 7
    and 8) are made or refused as the `product` says, or all of them are `refused`.
    `after_loss`: a GPU that was lost answers again in the `same` NVML session, or only in the next
    one (`anew`).
    `shutdown`: nvmlShutdown `waits` until event waits are over, or they never come back (`hang`).
    `attach`: a handle holds the GPU that was `asked` for (by UUID also those that were looked at on
    the way), or `all` of the node.
    `config_events`: changes of instances are `delivered` as events, or such are `not supported`.
    `recovery_action`: field 230 is there and an `event` tells of its changes, or none does
    (`silent`), or a driver before 565 has `none`.
    `no_fabric`: of a GPU without NVSwitches nvmlDeviceGetGpuFabricInfoV is `refused`, as nvml.h
    says, or has a `state` that says so, as the kernel module does.
    `compute_mode`: a GPU in MIG mode `tells` its compute mode, as the kernel module does, or asking
    it is `refused`, as nvml.h says.
    `instance_lingers`: a GPU instance whose compute instance has just been destroyed is refused
    with IN_USE for so many destroys (0: none).
    `mode_held`: a change of MIG mode while another client holds the GPU stays `pending`, with
    IN_USE as activation status, or is `refused` with that code and leaves nothing pending.
    `monitored`: a monitor (DCGM) subscribes to each new compute instance, whose destroy is refused
    with IN_USE so many times, with no process to name; then the monitor releases it (0: none).
    `gsp_keeps`: of the first GPU instance that is destroyed on a GPU the GSP's part fails: the
    answer is UNKNOWN, the instance is listed no more, and so many creations that touch its place
    are refused until the GPU is reset (0: it does not fail).
    `host_nodes`: NVML makes the device nodes that it opens where they are `made`, or the driver's
    parameter ModifyDeviceFiles is 0 and the host has none (`forbidden`).
    """

    mig_uuid: Literal["new", "place"] = "new"
    lookup_by_uuid: Literal["own", "any"] = "any"
    processes: Literal["seen", "hidden"] = "seen"
    full_compute: Literal["product", "refused"] = "product"
    after_loss: Literal["same", "anew"] = "same"
    shutdown: Literal["waits", "hang"] = "waits"
    attach: Literal["asked", "all"] = "asked"
    config_events: Literal["delivered", "not supported"] = "delivered"
    recovery_action: Literal["event", "silent", "none"] = "event"
    no_fabric: Literal["refused", "state"] = "state"
    compute_mode: Literal["tells", "refused"] = "tells"
    instance_lingers: int = 0
    mode_held: Literal["pending", "refused"] = "pending"
    monitored: int = 0
    gsp_keeps: int = 0
    host_nodes: Literal["made", "forbidden"] = "made"


OTHERS: dict[str, Variants] = {
    "mig-uuid-of-the-place": Variants(mig_uuid="place"),
    "lookup-by-uuid-of-its-own": Variants(lookup_by_uuid="own"),
    "processes-hidden": Variants(processes="hidden"),
    "full-compute-refused": Variants(full_compute="refused"),
    "back-in-the-next-session": Variants(after_loss="anew"),
    "waits-outlast-shutdown": Variants(shutdown="hang"),
    "one-handle-holds-all": Variants(attach="all"),
    "no-events-of-instances": Variants(config_events="not supported"),
    "instance-lingers": Variants(instance_lingers=1),
    "mode-refused-while-held": Variants(mode_held="refused"),
    "recovery-action-untold": Variants(recovery_action="silent"),
    "no-recovery-action": Variants(recovery_action="none"),
    "fabric-refused": Variants(no_fabric="refused"),
    "compute-mode-of-slices-only": Variants(compute_mode="refused"),
    "monitor-holds-slices": Variants(monitored=2),
    "gsp-keeps-a-place": Variants(gsp_keeps=1),
    "no-nodes-made": Variants(host_nodes="forbidden"),
}
"""One machine for each possibility that is not the default, by name."""
