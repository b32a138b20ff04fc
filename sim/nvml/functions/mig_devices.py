"""MIG devices: the handles that stand for compute instances. Indexes may have holes."""

from typing import Any

import pynvml

from sim.nvml.border.cabi import integer, put_handle, put_uint, structure
from sim.nvml.border.library import exported
from sim.nvml.border.session import Session
from sim.nvml.codes import RefusedError, Return
from sim.nvml.gpus import hardware
from sim.nvml.state import ComputeInstance, Gpu, GpuInstance


def _mig_device(session: Session, device: Any) -> tuple[Gpu, GpuInstance, ComputeInstance]:
    target = session.target(device, "mig-device")
    return session.compute_instance(session.store.read(), target)


@exported("nvmlDeviceIsMigDeviceHandle")
def is_mig_device(session: Session, device: Any, answer: Any) -> None:
    """1 for a MIG device, 0 for a whole GPU."""
    put_uint(answer, int(session.target(device, "device", "mig-device").kind == "mig-device"))


@exported("nvmlDeviceGetMaxMigDeviceCount")
def max_count(session: Session, device: Any, count: Any) -> None:
    """Most MIG devices that the GPU can have; 0 with MIG mode off."""
    gpu, product = session.device(device)
    put_uint(count, product.compute_slices if gpu.mig else 0)


@exported("nvmlDeviceGetMigDeviceHandleByIndex")
def by_index(session: Session, device: Any, index: Any, mig_device: Any) -> None:
    """MIG device by index; NOT_FOUND where there is none, NOT_SUPPORTED with MIG mode off."""
    gpu, product = session.device(device)
    hardware.require_mig(gpu)
    if not 0 <= integer(index) < product.compute_slices:
        raise RefusedError(Return.INVALID_ARGUMENT)
    for instance in gpu.gpu_instances:
        for compute in instance.compute_instances:
            if compute.index == integer(index):
                put_handle(mig_device, session.handle("mig-device", gpu, compute.key))
                return
    raise RefusedError(Return.NOT_FOUND)


@exported("nvmlDeviceGetDeviceHandleFromMigDeviceHandle")
def parent(session: Session, mig_device: Any, device: Any) -> None:
    """The GPU of a MIG device."""
    gpu, _, _ = _mig_device(session, mig_device)
    put_handle(device, session.handle("device", gpu))


@exported("nvmlDeviceGetGpuInstanceId")
def gpu_instance_id(session: Session, mig_device: Any, identifier: Any) -> None:
    """Id of the MIG device's GPU instance."""
    put_uint(identifier, _mig_device(session, mig_device)[1].id)


@exported("nvmlDeviceGetComputeInstanceId")
def compute_instance_id(session: Session, mig_device: Any, identifier: Any) -> None:
    """Id of the MIG device's compute instance."""
    put_uint(identifier, _mig_device(session, mig_device)[2].id)


@exported("nvmlDeviceGetAttributes_v2")
def attributes(session: Session, mig_device: Any, found: Any) -> None:
    """Slices, engines, multiprocessors and memory of a MIG device."""
    gpu, instance, compute = _mig_device(session, mig_device)
    profile = hardware.profile_of(session.store.product(gpu), instance.profile)
    share = hardware.compute_profile_of(profile, compute.profile)
    filled = structure(found, pynvml.c_nvmlDeviceAttributes)
    filled.multiprocessorCount = share.multiprocessors
    filled.sharedCopyEngineCount = profile.copy_engines
    filled.sharedDecoderCount = profile.decoders
    filled.sharedEncoderCount = profile.encoders
    filled.sharedJpegCount = profile.jpeg
    filled.sharedOfaCount = profile.ofa
    filled.gpuInstanceSliceCount = profile.slice_count
    filled.computeInstanceSliceCount = share.slice_count
    filled.memorySizeMB = profile.memory_mib
