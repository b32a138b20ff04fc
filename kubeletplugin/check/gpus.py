"""GPUs with their profiles and instances, and versions, as NVML tells them.

Each call is tried by itself: what one refuses hides nothing else.
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial, wraps
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeVar

import pynvml

from dra.gpu.inventory import GpuHealth
from kubeletplugin.check.report import ComputeProfile, Gpu, Instance, Profile, Versions
from kubeletplugin.gpus.driverlibrary import installed, kernel_module, mapped_library
from kubeletplugin.host.roots import Roots
from kubeletplugin.nvml.condition import UNSAID, health, read_condition, trouble
from kubeletplugin.nvml.errors import GpuLostError, NotSupportedError, NvmlError
from kubeletplugin.nvml.gpus import (
    MOST_PROFILES,
    architecture_name,
    mig_mode,
    newest_form,
    profile_name,
    read_placements,
    switches_mig,
    text,
)
from kubeletplugin.nvml.instances import (
    compute_handles,
    compute_profiles,
    gpu_instance_handles,
    read_compute_instance,
    read_gpu_instance,
)
from kubeletplugin.nvml.session import Session

T = TypeVar("T")
U = TypeVar("U")
_MIB = 1024 * 1024
_MODES = {None: "none", False: "off", True: "on"}


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
    modes = ask.tried(lambda: mig_mode(session, device, gpu=uuid), None)
    now, pending = modes or (None, None)
    architecture = ask(pynvml.nvmlDeviceGetArchitecture, device, instead=None)
    capability = ask(pynvml.nvmlDeviceGetCudaComputeCapability, device, instead=(0, 0))
    pci = ask(pynvml.nvmlDeviceGetPciInfo, device, instead=None)
    memory = ask(pynvml.nvmlDeviceGetMemoryInfo, device, instead=None)
    profiles = _read_profiles(ask, device, mig_on=bool(now)) if now is not None else ()
    condition = ask.tried(lambda: read_condition(session, device, gpu=uuid), UNSAID)
    said = health(condition, mig=bool(now)) or GpuHealth()
    minor = ask(pynvml.nvmlDeviceGetMinorNumber, device, instead=-1)
    running = [
        ask(function, device, instead=None)
        for function in (
            pynvml.nvmlDeviceGetComputeRunningProcesses_v3,
            pynvml.nvmlDeviceGetGraphicsRunningProcesses_v3,
        )
    ]
    pids = {p.pid for processes in running for p in processes or ()}
    return Gpu(
        index=index,
        uuid=uuid,
        minor=minor,
        product=ask(pynvml.nvmlDeviceGetName, device, instead=""),
        pci_bus_id=text(pci.busId) if pci is not None else "",
        pci_device_id=f"{pci.pciDeviceId:08x}" if pci is not None else "",
        architecture=architecture_name(architecture),
        cuda_compute_capability=f"{capability[0]}.{capability[1]}",
        memory_mib=memory.total // _MIB if memory is not None else 0,
        mig=_MODES[now],
        mig_pending=_MODES[pending],
        mode_needs_reset=now is not None and not switches_mig(architecture),
        processes=-1 if None in running else len(pids),
        events=ask(pynvml.nvmlDeviceGetSupportedEventTypes, device, instead=0),
        recovery_action=said.recovery,
        fabric=said.fabric,
        compute_mode=said.compute_mode,
        notes=said.notes,
        unavailable=trouble(condition, mig=bool(now), uuid=uuid, name=f"gpu-{minor}")[1],
        profiles=profiles,
        instances=_read_instances(ask, device, profiles) if now else (),
        lost=ask.lost,
        errors=tuple(ask.errors),
    )


def _read_profiles(ask: Asker, device: Any, *, mig_on: bool) -> tuple[Profile, ...]:
    """The profiles that the GPU has, in the order of NVML's enum; also with MIG mode off."""
    found: list[Profile] = []
    for enum in range(MOST_PROFILES):
        info = ask.tried(partial(_profile_info, ask, device, enum, mig_on=mig_on), None)
        if info is not None:
            found.append(_profile(ask, device, info, enum=enum, mig_on=mig_on))
        elif enum >= pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT:
            break
    return tuple(found)


def _profile_info(ask: Asker, device: Any, enum: int, *, mig_on: bool) -> Any:
    try:
        if mig_on:
            function = pynvml.nvmlDeviceGetGpuInstanceProfileInfoV
            return newest_form(ask.session, function, device, enum, gpu=ask.gpu)
        # The second form is documented for GPUs in MIG mode only.
        return ask.session.call(_first_form, device, enum, gpu=ask.gpu)
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
    placements = ask.tried(lambda: read_placements(ask.session, device, info.id, gpu=ask.gpu), ())
    remaining = pynvml.nvmlDeviceGetGpuInstanceRemainingCapacity
    return Profile(
        enum=enum,
        id=info.id,
        name=profile_name(info) or f"{info.sliceCount}g of {info.memorySizeMB} MiB",
        slices=info.sliceCount,
        most=info.instanceCount,
        memory_mib=info.memorySizeMB,
        multiprocessors=info.multiprocessorCount,
        copy_engines=info.copyEngineCount,
        decoders=info.decoderCount,
        encoders=info.encoderCount,
        jpeg_engines=info.jpegCount,
        ofa_engines=info.ofaCount,
        placements=tuple((p.start, p.size) for p in placements),
        remaining=int(ask(remaining, device, info.id, instead=-1)) if mig_on else -1,
    )


def _read_instances(ask: Asker, device: Any, profiles: tuple[Profile, ...]) -> tuple[Instance, ...]:
    """The GPU instances that are there, by start."""
    session, gpu = ask.session, ask.gpu
    found = {
        instance.id: instance
        for profile_id in dict.fromkeys(p.id for p in profiles)
        for handle in ask.tried(
            partial(gpu_instance_handles, session, device, profile_id, gpu=gpu), ()
        )
        if (instance := ask.tried(partial(_read_instance, ask, handle), None)) is not None
    }
    return tuple(sorted(found.values(), key=lambda i: (i.start, i.id)))


def _read_instance(ask: Asker, handle: Any) -> Instance:
    """One GPU instance.

    Raises:
        NvmlError: it cannot be asked, or is gone.
    """
    session, gpu = ask.session, ask.gpu
    instance = read_gpu_instance(session, handle, gpu=gpu)
    inside = [
        read_compute_instance(session, compute, gpu=gpu)
        for compute in compute_handles(session, handle, gpu=gpu)
    ]
    return Instance(
        id=instance.id,
        profile_id=instance.profile_id,
        start=instance.placement.start,
        size=instance.placement.size,
        compute_instances=tuple((c.id, c.uuid) for c in inside),
        compute_profiles=tuple(
            ComputeProfile(
                enum=enum,
                id=info.id,
                name=profile_name(info),
                slices=info.sliceCount,
                multiprocessors=info.multiprocessorCount,
                most=info.instanceCount,
            )
            for enum, info in compute_profiles(session, handle, gpu=gpu)
        ),
    )


def read_versions(session: Session, roots: Roots) -> Versions:
    """Versions, as far as each place tells one; the session may be closed."""

    def ask(work: Callable[[], Any]) -> str:
        try:
            return str(work()) if session.is_open else ""
        except NvmlError:
            return ""

    try:
        bindings = version("nvidia-ml-py")
    except PackageNotFoundError:
        bindings = ""
    return Versions(
        kernel_module=kernel_module(roots),
        nvml=ask(lambda: session.call(pynvml.nvmlSystemGetNVMLVersion)),
        driver=ask(session.driver_version),
        cuda=ask(session.cuda_version),
        mapped=mapped(),
        on_disk=tuple(installed(roots)),
        kernel=platform.release(),
        python=platform.python_version(),
        bindings=bindings,
    )


def mapped(maps: Path = Path("/proc/self/maps")) -> str:
    """The file of NVML that a process has mapped; `` (deleted)`` ends one that was replaced."""
    found = mapped_library(maps)
    if found is None:
        return ""
    return f"{found.path} (deleted)" if found.deleted else str(found.path)
