"""One slice that is made for an experiment, observed and removed."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from typing import Any

import pynvml
from msgspec.structs import replace

from dra.gpu.geometry import Placement
from dra.gpu.geometry import Profile as Shape
from kubeletplugin.check.looking.asker import Asker
from kubeletplugin.check.looking.profiles import offered
from kubeletplugin.check.report import ComputeProfile, Gpu, Profile, Trial
from kubeletplugin.nvml.changes import create_gpu_instance, destroy_compute_instances
from kubeletplugin.nvml.codes import code_name
from kubeletplugin.nvml.errors import HangError, NvmlError
from kubeletplugin.nvml.instances import GpuInstance, processes, read_compute_instance
from kubeletplugin.nvml.session.session import Session

SUCCESS = code_name(pynvml.NVML_SUCCESS)
_BESIDE_THE_PLAIN_ONE = 7
"""Enums from here on are compute-instance profiles beside the plain one of their slice count."""


class Slices:
    """Makes the parts of slices on one GPU, one after the other."""

    def __init__(self, session: Session, gpu: Gpu) -> None:
        self._session = session
        self._gpu = gpu

    def create(self, profile: Profile, placement: Placement) -> GpuInstance:
        """Make a GPU instance.

        Raises:
            NvmlError: it was refused.
        """
        shape = Shape(
            profile.id,
            profile.name,
            profile.slices,
            profile.memory_mib,
            profile.multiprocessors,
            (placement,),
        )
        return create_gpu_instance(
            self._session, self._gpu.uuid, profile=shape, placement=placement
        )

    def candidates(self, gi: GpuInstance, profile: Profile) -> list[ComputeProfile]:
        """The compute-instance profiles that fill the GPU instance or stand beside one that does.

        Raises:
            NvmlError: they cannot be asked for.
        """
        ask = Asker(self._session, self._gpu.uuid)
        wanted = [
            offer
            for offer in offered(ask, self._handle(gi))
            if offer.slices == profile.slices or offer.enum >= _BESIDE_THE_PLAIN_ONE
        ]
        return sorted(wanted, key=lambda o: (-o.multiprocessors, o.enum))

    def fill(self, gi: GpuInstance, offer: ComputeProfile, trial: Trial) -> Trial:
        """Make a compute instance, and put what came of it into the trial."""
        call, gpu = self._session.call, self._gpu.uuid
        try:
            create = pynvml.nvmlGpuInstanceCreateComputeInstance
            handle = call(create, self._handle(gi), offer.id, gpu=gpu)
            made = read_compute_instance(self._session, handle, gpu=gpu)
            device = call(pynvml.nvmlComputeInstanceGetInfo_v2, handle, gpu=gpu).device
            shown = call(pynvml.nvmlDeviceGetAttributes_v2, device, gpu=gpu)
        except HangError:
            raise
        except NvmlError as error:
            return replace(trial, enum=offer.enum, refused=code_name(error.code))
        return replace(
            trial,
            enum=offer.enum,
            compute_instance_id=made.id,
            uuid=made.uuid,
            multiprocessors=shown.multiprocessorCount,
            memory_mib=shown.memorySizeMB,
        )

    def empty(self, gi: GpuInstance) -> str:
        """Destroy the compute instances of a GPU instance; the code's name."""
        try:
            destroy_compute_instances(self._session, self._gpu.uuid, gi.id)
        except HangError:
            raise
        except NvmlError as error:
            return code_name(error.code)
        return SUCCESS

    def code_of_taken(self, gi: GpuInstance) -> str:
        """The driver's answer to another instance of the same profile at the same placement."""
        place = pynvml.c_nvmlGpuInstancePlacement_t(
            start=gi.placement.start, size=gi.placement.size
        )
        return self._code(
            pynvml.nvmlDeviceCreateGpuInstanceWithPlacement,
            self._session.device(self._gpu.uuid),
            gi.profile_id,
            ctypes.byref(place),
        )

    def code_of_busy(self, gi: GpuInstance) -> str:
        """The driver's answer to the end of a GPU instance that has a compute instance."""
        return self._code(pynvml.nvmlGpuInstanceDestroy, self._handle(gi))

    def names(self, gi: GpuInstance, pid: int) -> str:
        """Answer whether NVML names a process in a slice: ``seen``, ``hidden``, or why not."""
        try:
            found = processes(self._session, self._gpu.uuid, gi.id)
        except NvmlError as error:
            return code_name(error.code)
        if pid in found:
            return "seen"
        return f"other pids: {', '.join(map(str, found))}" if found else "hidden"

    def _handle(self, gi: GpuInstance) -> Any:
        device, gpu = self._session.device(self._gpu.uuid), self._gpu.uuid
        return self._session.call(pynvml.nvmlDeviceGetGpuInstanceById, device, gi.id, gpu=gpu)

    def _code(self, function: Any, *arguments: Any) -> str:
        try:
            self._session.call(function, *arguments, gpu=self._gpu.uuid)
        except HangError:
            raise
        except NvmlError as error:
            return code_name(error.code)
        return SUCCESS


def best(trials: Iterable[Trial], profile: str) -> int:
    """Enum of the instance of a profile with the most multiprocessors; -1 if none was made."""
    made = [t for t in trials if t.profile == profile and not t.refused]
    return max(made, key=lambda t: (t.multiprocessors, -t.enum)).enum if made else -1
