"""GPUs of this machine as NVML describes them. A GPU that fails does not hide the others.

NVML's calls take an enum for the information about a profile, and the ``id`` in that information
for everything else.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial, wraps
from typing import Any

import pynvml

from dra.gpu.geometry import Engines, Geometry, Placement, Profile
from dra.gpu.inventory import GpuFacts, GpuReason
from kubeletplugin.nvml.condition import UNSAID, Condition, read_condition, trouble
from kubeletplugin.nvml.errors import NotSupportedError, NvmlError, reset
from kubeletplugin.nvml.session import Device, Session, together

_MIB = 1024 * 1024
_MOST_GPUS = 64
MOST_PROFILES = 64
"""Upper bound on the enums that are asked for, if no answer ends the list before."""
_NAME_PREFIX = "MIG "
_SUFFIXES = {
    pynvml.NVML_GPU_INSTANCE_PROFILE_1_SLICE_REV1: "+me",
    pynvml.NVML_GPU_INSTANCE_PROFILE_2_SLICE_REV1: "+me",
    pynvml.NVML_GPU_INSTANCE_PROFILE_1_SLICE_GFX: "+gfx",
    pynvml.NVML_GPU_INSTANCE_PROFILE_2_SLICE_GFX: "+gfx",
    pynvml.NVML_GPU_INSTANCE_PROFILE_3_SLICE_GFX: "+gfx",
    pynvml.NVML_GPU_INSTANCE_PROFILE_4_SLICE_GFX: "+gfx",
    pynvml.NVML_GPU_INSTANCE_PROFILE_1_SLICE_NO_ME: "-me",
    pynvml.NVML_GPU_INSTANCE_PROFILE_2_SLICE_NO_ME: "-me",
    pynvml.NVML_GPU_INSTANCE_PROFILE_1_SLICE_ALL_ME: "+me.all",
    pynvml.NVML_GPU_INSTANCE_PROFILE_2_SLICE_ALL_ME: "+me.all",
}
_ARCHITECTURES = {
    value: name.removeprefix("NVML_DEVICE_ARCH_").capitalize()
    for name, value in vars(pynvml).items()
    if name.startswith("NVML_DEVICE_ARCH_") and isinstance(value, int)
}
_BRANDS = {
    pynvml.NVML_BRAND_TESLA: "Tesla",
    pynvml.NVML_BRAND_NVIDIA: "Nvidia",
    pynvml.NVML_BRAND_NVIDIA_RTX: "NvidiaRTX",
    pynvml.NVML_BRAND_QUADRO_RTX: "QuadroRTX",
    pynvml.NVML_BRAND_GEFORCE: "GeForce",
}
_UNKNOWN_FORM = frozenset(
    {
        pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
        pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
        pynvml.NVML_ERROR_INVALID_ARGUMENT,
    }
)
"""Codes by which drivers refuse the second form of a call: older drivers, which do not know that
form, and some drivers of A30, which do."""


@dataclass(frozen=True, slots=True)
class Card(GpuFacts):
    """A GPU as NVML describes it now.

    ``minor``: number of the GPU's device node.
    ``pci_device_id`` and ``pci_subsystem_id``: of the PCI device and of its board; the vendor's id
    is in the lower half.
    ``switches_mig``: the MIG mode changes without a reset, as from Hopper on.
    ``geometry``: profiles of the GPU; None without MIG mode.
    ``condition``: the driver's word on errors, fabric and modes of the GPU.
    ``silent``: the GPU did not tell one of the facts, which is empty or 0, and may tell it soon.
    ``reason`` and ``problem``: a word for programs and a text for people why the GPU cannot be
    used; both are empty when it can.
    """

    uuid: str
    minor: int
    pci_device_id: int = 0
    pci_subsystem_id: int = 0
    mig_capable: bool = False
    mig_enabled: bool = False
    mig_pending: bool = False
    switches_mig: bool = False
    geometry: Geometry | None = None
    condition: Condition = UNSAID
    silent: bool = False
    reason: str = ""
    problem: str = ""

    def trouble(self, name: str) -> tuple[str, str]:
        """Reason and text why nothing new is to be given out on the GPU; both empty if none.

        ``name``: the GPU's name ``gpu-<n>``, for the remedies in the text.
        """
        if self.reason:
            return self.reason, self.problem
        return trouble(self.condition, mig=self.mig_enabled, uuid=self.uuid, name=name)


_FACTS = (
    pynvml.nvmlDeviceGetName,
    pynvml.nvmlDeviceGetCudaComputeCapability,
    pynvml.nvmlDeviceGetArchitecture,
    pynvml.nvmlDeviceGetBrand,
    pynvml.nvmlDeviceGetPciInfo,
    pynvml.nvmlDeviceGetMemoryInfo,
)
"""Facts that a GPU may refuse to tell: they are left out then. Without its UUID, minor number, MIG
mode, profiles or their placements, NOT_SUPPORTED aside, the GPU is."""
_NONE: Mapping[str, Card] = {}


@dataclass(frozen=True, slots=True)
class Discovery:
    """GPUs that were found. ``problems``: one text for each GPU that did not tell its UUID."""

    driver_version: str
    cuda_version: str
    cards: tuple[Card, ...]
    problems: tuple[str, ...]


def discover(
    session: Session,
    addresses: Collection[str] | None = None,
    *,
    described: Mapping[str, Card] = _NONE,
) -> Discovery:
    """Read every GPU; with PCI ``addresses`` only the GPUs there, and no other is touched.

    ``described``: by UUID, cards that still hold; these GPUs are only asked who they are.

    Raises:
        NvmlError: the driver itself cannot be asked.
    """
    driver, cuda = session.driver_version(), session.cuda_version()
    cards: list[Card] = []
    problems: list[str] = []
    uncounted: NvmlError | None = None
    try:
        count = session.call(pynvml.nvmlDeviceGetCount)
    except NvmlError as error:
        # nvml.h names no state of a GPU that makes this call fail. If it fails all the same, GPUs
        # are asked for by index, until the driver says that an index is past the last.
        count, uncounted = _MOST_GPUS, error
        problems.append(str(error))
    for place in range(count) if addresses is None else addresses:
        try:
            found = session.take(place)
            cards.append(described.get(found.uuid) or _read(session, found))
        except NvmlError as error:
            past_the_last = error.code == pynvml.NVML_ERROR_INVALID_ARGUMENT
            if uncounted is not None and past_the_last and addresses is None:
                break
            problems.append(str(error))
    if uncounted is not None and not cards:
        raise uncounted
    # Equal geometries are one object, which need not be compared.
    known: dict[Geometry, Geometry] = {}
    shared = (
        c if (g := c.geometry) is None else replace(c, geometry=known.setdefault(g, g))
        for c in cards
    )
    return Discovery(driver, cuda, tuple(shared), tuple(problems))


def architecture_name(number: int | None) -> str:
    """Name of an architecture by NVML's number, such as ``Ampere`` for 7.

    ``Unknown`` for None, and for a number that NVML's bindings do not know.
    """
    return "Unknown" if number is None else _ARCHITECTURES.get(number, "Unknown")


def switches_mig(architecture: int | None) -> bool:
    """True if MIG mode changes without a reset of the GPU: from Hopper on."""
    hopper, unknown = pynvml.NVML_DEVICE_ARCH_HOPPER, pynvml.NVML_DEVICE_ARCH_UNKNOWN
    return architecture is not None and hopper <= architecture < unknown


@together
def mig_mode(session: Session, gpu: str) -> tuple[bool, bool] | None:
    """MIG mode as a pair: on now, on after the next reset. None for a GPU that has no MIG."""
    try:
        current, pending = session.call(pynvml.nvmlDeviceGetMigMode, session.device(gpu), gpu=gpu)
    except NotSupportedError:
        return None
    return bool(current), bool(pending)


def _read(session: Session, found: Device) -> Card:
    device, uuid = found.handle, found.uuid
    minor = session.call(pynvml.nvmlDeviceGetMinorNumber, device, gpu=uuid)
    try:
        return _describe(session, device, uuid=uuid, minor=minor)
    except NvmlError as error:
        return Card(uuid, minor, reason=GpuReason.NVML_ERROR, problem=str(error))


def _describe(session: Session, device: Any, *, uuid: str, minor: int) -> Card:
    mode = mig_mode(session, uuid)
    enabled, pending = mode or (False, False)
    reason = problem = ""
    if enabled != pending:
        reason = GpuReason.MIG_PENDING
        wanted = "on" if pending else "off"
        problem = f"MIG mode turns {wanted} at the next GPU reset; {reset(uuid)}"
    refusals: list[NvmlError] = []
    ask = partial(session.told, instead=None, gpu=uuid, refusals=refusals)
    name, capability, architecture, brand, pci, memory = (ask(each, device) for each in _FACTS)
    # ``00000000:07:00.0`` is ``0000:07:00.0`` to Linux.
    domain, _, rest = text(pci.busId).lower().partition(":") if pci else ("", "", "")
    return Card(
        uuid=uuid,
        minor=minor,
        product_name=name or "",
        brand="" if brand is None else _BRANDS.get(brand, f"Brand{brand}"),
        architecture=architecture_name(architecture),
        cuda_compute_capability=".".join(map(str, capability or ())),
        pci_bus_id=f"{domain[-4:]}:{rest}" if pci else "",
        pci_device_id=pci.pciDeviceId if pci else 0,
        pci_subsystem_id=pci.pciSubSystemId if pci else 0,
        memory_mib=memory.total // _MIB if memory else 0,
        silent=any(error.passing for error in refusals),
        mig_capable=mode is not None,
        mig_enabled=enabled,
        mig_pending=pending,
        switches_mig=switches_mig(architecture),
        geometry=read_geometry(session, device, gpu=uuid) if enabled else None,
        condition=read_condition(session, device, gpu=uuid),
        reason=reason,
        problem=problem,
    )


def read_geometry(session: Session, device: Any, *, gpu: str) -> Geometry:
    """Profiles of a GPU in MIG mode, in the order of NVML's enum.

    A profile without placements cannot be made and is left out.

    Raises:
        NvmlError: the driver refused a call for another reason than that it lacks a profile.
    """
    profiles: dict[int, Profile] = {}
    for enum, info in _profile_infos(session, device, gpu=gpu):
        if info.id in profiles:
            continue
        try:
            placements = read_placements(session, device, info.id, gpu=gpu)
        except NotSupportedError:
            continue
        if placements:
            profiles[info.id] = Profile(
                id=info.id,
                name=_name(session, device, info, enum, gpu=gpu),
                compute_slices=info.sliceCount,
                memory_mib=info.memorySizeMB,
                multiprocessors=info.multiprocessorCount,
                placements=placements,
                engines=Engines(
                    copy_engines=info.copyEngineCount,
                    decoders=info.decoderCount,
                    encoders=info.encoderCount,
                    jpeg_engines=info.jpegCount,
                    ofa_engines=info.ofaCount,
                ),
            )
    return Geometry(tuple(profiles.values()))


def read_placements(
    session: Session, device: Any, profile_id: int, *, gpu: str
) -> tuple[Placement, ...]:
    """All placements that a profile can have."""
    count = ctypes.c_uint(0)
    ask = pynvml.nvmlDeviceGetGpuInstancePossiblePlacements
    session.call(ask, device, profile_id, None, ctypes.byref(count), gpu=gpu)
    buffer = (pynvml.c_nvmlGpuInstancePlacement_t * count.value)()
    session.call(ask, device, profile_id, buffer, ctypes.byref(count), gpu=gpu)
    return tuple(Placement(p.start, p.size) for p in buffer[: count.value])


def profile_name(info: Any) -> str:
    """A profile's name as the driver tells it; empty where the first form of the call has none."""
    return text(getattr(info, "name", "")).removeprefix(_NAME_PREFIX)


def newest_form(session: Session, function: Callable[..., Any], *arguments: Any, gpu: str) -> Any:
    """Answer to the second form of a call, or to its first form if the driver refuses the second.

    ``function``: a function of pynvml with an argument ``version``.

    Raises:
        NvmlError: the driver refused the call, not because of its form.
    """
    try:
        return session.call(function, *arguments, gpu=gpu)
    except NvmlError as error:
        if error.code not in _UNKNOWN_FORM:
            raise

    @wraps(function)
    def first_form(*arguments: Any) -> Any:
        return function(*arguments, version=1)

    return session.call(first_form, *arguments, gpu=gpu)


def text(value: bytes | str) -> str:
    """A text of NVML as ``str``; the bindings return bytes or ``str``."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _profile_infos(session: Session, device: Any, *, gpu: str) -> Iterator[tuple[int, Any]]:
    """Profiles that this GPU and this driver know, as pairs of enum and profile info.

    Enums past the bindings' count are asked for too, as a newer driver may know more: an instance
    of such a profile would not be seen, and its placement would count as free. INVALID_ARGUMENT
    ends the list (nvml.h). Below the bindings' count it may come from an older driver, and the next
    enum is asked for.
    """
    ask = pynvml.nvmlDeviceGetGpuInstanceProfileInfoV
    for enum in range(MOST_PROFILES):
        try:
            yield enum, newest_form(session, ask, device, enum, gpu=gpu)
        except NotSupportedError:
            continue
        except NvmlError as error:
            if error.code != pynvml.NVML_ERROR_INVALID_ARGUMENT:
                raise
            if enum >= pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT:
                return


def _name(session: Session, device: Any, info: Any, enum: int, *, gpu: str) -> str:
    """Name of a profile: the driver's own or, without one, a name made by NVIDIA's rule.

    By that rule the profile's memory is rounded up to eighths of the GPU's memory, and named in
    whole GB.
    """
    if hasattr(info, "name"):
        return profile_name(info)
    total = session.call(pynvml.nvmlDeviceGetMemoryInfo, device, gpu=gpu).total / _MIB
    share = math.ceil(info.memorySizeMB / total * 8) / 8
    size = math.floor(share * math.ceil(total / 1024) + 0.5)
    return f"{info.sliceCount}g.{size}gb{_SUFFIXES.get(enum, '')}"
