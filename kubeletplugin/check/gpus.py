"""GPUs with their profiles and instances, and versions, as NVML tells them.

Each call is tried by itself: what one refuses hides nothing else.
"""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial, wraps
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeVar

import pynvml

from dra.gpu.inventory import GpuHealth
from kubeletplugin.check.report import ComputeProfile, Gpu, Instance, Profile, Versions
from kubeletplugin.host.driverversions import installed, kernel_module, mapped_library
from kubeletplugin.host.roots import Roots
from kubeletplugin.nvml.condition import UNSAID, health, read_condition, trouble
from kubeletplugin.nvml.errors import GpuLostError, NotSupportedError, NvmlError
from kubeletplugin.nvml.gpus import MOST_PROFILES, architecture_name, newest_form
from kubeletplugin.nvml.instances import (
    compute_handles,
    compute_profiles,
    read_compute_instance,
    read_gpu_instance,
)
from kubeletplugin.nvml.session import Session

T = TypeVar("T")
U = TypeVar("U")


@dataclass(slots=True)
class Asker:
    """Asks one GPU, and keeps what it refused instead of raising."""

    session: Session
    gpu: str
    errors: list[str] = field(default_factory=list)
    lost: bool = False

    def __call__(self, function: Callable[..., Any], *arguments: Any, instead: T) -> Any | T:
        """The answer, or ``instead``."""
        return self.tried(partial(self.session.call, function, *arguments, gpu=self.gpu), instead)

    def tried(self, work: Callable[[], T], instead: U) -> T | U:
        """Result of ``work``, or ``instead`` where it raises an NvmlError."""
        try:
            return work()
        except NvmlError as error:
            self.lost = self.lost or isinstance(error, GpuLostError)
            self.errors.append(str(error))
            return instead


_MOST_INSTANCES = 16
_NAME_PREFIX = "MIG "


def read_profiles(ask: Asker, device: Any, *, mig_on: bool) -> tuple[Profile, ...]:
    """The profiles that the GPU has, in the order of NVML's enum; also with MIG mode off."""
    found: list[Profile] = []
    for enum in range(MOST_PROFILES):
        info = ask.tried(partial(_info, ask, device, enum, mig_on=mig_on), None)
        if info is not None:
            found.append(_profile(ask, device, info, enum=enum, mig_on=mig_on))
        elif enum >= pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT:
            break
    return tuple(found)


def read_instances(ask: Asker, device: Any, profiles: tuple[Profile, ...]) -> tuple[Instance, ...]:
    """The GPU instances that are there, by start."""
    found = {
        instance.id: instance
        for profile_id in dict.fromkeys(p.id for p in profiles)
        for handle in _handles(ask, device, profile_id)
        if (instance := ask.tried(partial(read_instance, ask, handle), None)) is not None
    }
    return tuple(sorted(found.values(), key=lambda i: (i.start, i.id)))


def read_instance(ask: Asker, handle: Any) -> Instance:
    """One GPU instance.

    Raises:
        NvmlError: it cannot be asked, or is gone.
    """
    instance = read_gpu_instance(ask.session, handle, gpu=ask.gpu)
    inside = [
        read_compute_instance(ask.session, compute, gpu=ask.gpu)
        for compute in compute_handles(ask.session, handle, gpu=ask.gpu)
    ]
    return Instance(
        id=instance.id,
        profile_id=instance.profile_id,
        start=instance.placement.start,
        size=instance.placement.size,
        compute_instances=tuple((c.id, c.uuid) for c in inside),
        compute_profiles=tuple(offered(ask, handle)),
    )


def offered(ask: Asker, handle: Any) -> Iterator[ComputeProfile]:
    """The compute-instance profiles of a GPU instance, by NVML's enum.

    Raises:
        NvmlError: it cannot be asked.
    """
    for enum, info in compute_profiles(ask.session, handle, gpu=ask.gpu):
        yield ComputeProfile(
            enum=enum,
            id=info.id,
            name=_name(info),
            slices=info.sliceCount,
            multiprocessors=info.multiprocessorCount,
            most=info.instanceCount,
        )


def _info(ask: Asker, device: Any, enum: int, *, mig_on: bool) -> Any:
    def ask_for() -> Any:
        if mig_on:
            function = pynvml.nvmlDeviceGetGpuInstanceProfileInfoV
            return newest_form(ask.session, function, device, enum, gpu=ask.gpu)
        # The second form is documented for GPUs in MIG mode only.
        return ask.session.call(_first_form, device, enum, gpu=ask.gpu)

    try:
        return ask_for()
    except NotSupportedError:
        return None
    except NvmlError as error:
        if error.code == pynvml.NVML_ERROR_INVALID_ARGUMENT:
            return None  # a driver that is older than this list of enums
        raise


@wraps(pynvml.nvmlDeviceGetGpuInstanceProfileInfo)
def _first_form(device: Any, enum: int) -> Any:
    return pynvml.nvmlDeviceGetGpuInstanceProfileInfo(device, enum, version=1)


def _profile(ask: Asker, device: Any, info: Any, *, enum: int, mig_on: bool) -> Profile:
    def remaining() -> int:
        ask_for = pynvml.nvmlDeviceGetGpuInstanceRemainingCapacity
        return int(ask.session.call(ask_for, device, info.id, gpu=ask.gpu))

    return Profile(
        enum=enum,
        id=info.id,
        name=_name(info) or f"{info.sliceCount}g of {info.memorySizeMB} MiB",
        slices=info.sliceCount,
        most=info.instanceCount,
        memory_mib=info.memorySizeMB,
        multiprocessors=info.multiprocessorCount,
        copy_engines=info.copyEngineCount,
        decoders=info.decoderCount,
        encoders=info.encoderCount,
        jpeg_engines=info.jpegCount,
        ofa_engines=info.ofaCount,
        placements=ask.tried(lambda: _placements(ask, device, info.id), ()),
        remaining=ask.tried(remaining, -1) if mig_on else -1,
    )


def _placements(ask: Asker, device: Any, profile_id: int) -> tuple[tuple[int, int], ...]:
    function, count = pynvml.nvmlDeviceGetGpuInstancePossiblePlacements, ctypes.c_uint(0)
    ask.session.call(function, device, profile_id, None, ctypes.byref(count), gpu=ask.gpu)
    buffer = (pynvml.c_nvmlGpuInstancePlacement_t * count.value)()
    ask.session.call(function, device, profile_id, buffer, ctypes.byref(count), gpu=ask.gpu)
    return tuple((p.start, p.size) for p in buffer[: count.value])


def _handles(ask: Asker, device: Any, profile_id: int) -> list[Any]:
    def handles() -> list[Any]:
        buffer = (pynvml.c_nvmlGpuInstance_t * _MOST_INSTANCES)()
        count = ctypes.c_uint(_MOST_INSTANCES)
        function = pynvml.nvmlDeviceGetGpuInstances
        ask.session.call(function, device, profile_id, buffer, ctypes.byref(count), gpu=ask.gpu)
        return list(buffer[: count.value])

    return ask.tried(handles, [])


def _name(info: Any) -> str:
    """The profile's name; empty where the first form of the call has none."""
    name = getattr(info, "name", "")
    text = name.decode(errors="replace") if isinstance(name, bytes) else str(name)
    return text.removeprefix(_NAME_PREFIX)


_MIB = 1024 * 1024
_MODES = {None: "none", False: "off", True: "on"}


def read_gpus(session: Session) -> tuple[Gpu, ...]:
    """Every GPU that NVML counts, in its order.

    Raises:
        NvmlError: the driver itself cannot be asked.
    """
    count = session.call(pynvml.nvmlDeviceGetCount)
    return tuple(read_gpu(session, index) for index in range(count))


def read_gpu(session: Session, index: int) -> Gpu:
    """One GPU."""
    ask = Asker(session, f"with index {index}")
    found = ask.tried(lambda: session.take(index), None)
    if found is None:
        return Gpu(index=index, lost=ask.lost, errors=tuple(ask.errors))
    uuid, device = found.uuid, found.handle
    ask.gpu = uuid
    now, pending = _mig_mode(ask, device)
    architecture = ask(pynvml.nvmlDeviceGetArchitecture, device, instead=None)
    capability = ask(pynvml.nvmlDeviceGetCudaComputeCapability, device, instead=(0, 0))
    pci = ask(pynvml.nvmlDeviceGetPciInfo, device, instead=None)
    memory = ask(pynvml.nvmlDeviceGetMemoryInfo, device, instead=None)
    profiles = read_profiles(ask, device, mig_on=bool(now)) if now is not None else ()
    condition = ask.tried(lambda: read_condition(session, device, gpu=uuid), UNSAID)
    said = health(condition, mig=bool(now)) or GpuHealth()
    minor = ask(pynvml.nvmlDeviceGetMinorNumber, device, instead=-1)
    return Gpu(
        index=index,
        uuid=uuid,
        minor=minor,
        product=ask(pynvml.nvmlDeviceGetName, device, instead=""),
        pci_bus_id=_text(pci.busId) if pci is not None else "",
        pci_device_id=f"{pci.pciDeviceId:08x}" if pci is not None else "",
        architecture=architecture_name(architecture),
        cuda_compute_capability=f"{capability[0]}.{capability[1]}",
        memory_mib=memory.total // _MIB if memory is not None else 0,
        mig=_MODES[now],
        mig_pending=_MODES[pending],
        mode_needs_reset=now is not None and needs_reset(architecture),
        processes=_processes(ask, device),
        events=ask(pynvml.nvmlDeviceGetSupportedEventTypes, device, instead=0),
        recovery_action=said.recovery,
        fabric=said.fabric,
        compute_mode=said.compute_mode,
        notes=said.notes,
        unavailable=trouble(condition, mig=bool(now), uuid=uuid, name=f"gpu-{minor}")[1],
        profiles=profiles,
        instances=read_instances(ask, device, profiles) if now else (),
        lost=ask.lost,
        errors=tuple(ask.errors),
    )


def needs_reset(architecture: int | None) -> bool:
    """True if a change of MIG mode needs a reset of the GPU: before Hopper, or unknown."""
    return (
        architecture is None
        or architecture == pynvml.NVML_DEVICE_ARCH_UNKNOWN
        or architecture < pynvml.NVML_DEVICE_ARCH_HOPPER
    )


def _mig_mode(ask: Asker, device: Any) -> tuple[bool | None, bool | None]:
    def mode() -> tuple[bool | None, bool | None]:
        try:
            now, pending = ask.session.call(pynvml.nvmlDeviceGetMigMode, device, gpu=ask.gpu)
        except NotSupportedError:
            return None, None
        return bool(now), bool(pending)

    return ask.tried(mode, (None, None))


def _processes(ask: Asker, device: Any) -> int:
    functions = (
        pynvml.nvmlDeviceGetComputeRunningProcesses_v3,
        pynvml.nvmlDeviceGetGraphicsRunningProcesses_v3,
    )
    found = [ask(function, device, instead=None) for function in functions]
    return -1 if any(f is None for f in found) else len({p.pid for f in found for p in f or ()})


def _text(value: bytes | str) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def read_versions(
    session: Session, roots: Roots, *, maps: Path = Path("/proc/self/maps")
) -> Versions:
    """Versions, as far as each place tells one; the session may be closed."""

    def ask(function: str) -> str:
        try:
            return str(session.call(getattr(pynvml, function))) if session.is_open else ""
        except NvmlError:
            return ""

    try:
        cuda = session.cuda_version() if session.is_open else ""
    except NvmlError:
        cuda = ""
    return Versions(
        kernel_module=kernel_module(roots),
        nvml=ask("nvmlSystemGetNVMLVersion"),
        driver=ask("nvmlSystemGetDriverVersion"),
        cuda=cuda,
        mapped=mapped(maps),
        on_disk=tuple(installed(roots)),
        kernel=platform.release(),
        python=platform.python_version(),
        bindings=_bindings(),
    )


def mapped(maps: Path) -> str:
    """The file of NVML that a process has mapped; `` (deleted)`` ends one that was replaced."""
    found = mapped_library(maps)
    if found is None:
        return ""
    return f"{found.path} (deleted)" if found.deleted else str(found.path)


def _bindings() -> str:
    try:
        return version("nvidia-ml-py")
    except PackageNotFoundError:
        return ""
