"""The compute instance that takes a whole GPU instance: the one that delivers most.

Several compute-instance profiles of a GPU instance may have its slice count. On Hopper and
Blackwell the full one of a double-memory slice is 1_SLICE_REV1 (dra-driver-nvidia-gpu#1454: 30
multiprocessors, and 18 with 1_SLICE); on A100 that one is reported and refused (go-nvlib#102), and
so is 7_SLICE_NVL (dra-driver-nvidia-gpu#1480). So none is chosen or skipped by its number.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pynvml

from dra.gpu.geometry import Profile
from kubeletplugin.nvml.errors import (
    InsufficientResourcesError,
    NotSupportedError,
    ReadBackError,
    UndeliverableError,
)
from kubeletplugin.nvml.instances import (
    ask_compute_profiles,
    find_compute_instance,
)
from kubeletplugin.nvml.session import ComputeProfile, ProfileKey, Session, together

# Two 3g.20gb of one A100 show 20224 and 20096 MiB where the profile says 19968.
_LEAST_MEMORY_SHARE = 0.9


@dataclass(frozen=True, slots=True)
class Delivered:
    """A new compute instance, and what NVML says of its MIG device."""

    id: int
    uuid: str
    multiprocessors: int
    memory_mib: int


@together
def create_compute_instance(
    session: Session, gpu: str, *, gi_id: int, profile: Profile
) -> Delivered:
    """Make the compute instance that takes a whole, empty GPU instance, and check what came of it.

    Raises:
        UndeliverableError: the driver makes none that has what the profile advertises; none is
            left.
        NotSupportedError: a call is not supported, which says nothing of the profile.
        ReadBackError: it is not there.
    """
    gi = session.call(pynvml.nvmlDeviceGetGpuInstanceById, session.device(gpu), gi_id, gpu=gpu)
    key = (session.generation, gpu, profile.id)
    choices = _whole(session, gi, profile, key=key)
    refused: list[str] = []
    for choice in choices:
        if choice.multiprocessors < profile.multiprocessors:
            break
        try:
            handle = session.call(
                pynvml.nvmlGpuInstanceCreateComputeInstance, gi, choice.id, gpu=gpu
            )
        except (NotSupportedError, InsufficientResourcesError) as error:
            if error.code == pynvml.NVML_ERROR_FUNCTION_NOT_FOUND:
                raise
            session.compute_profiles.doubt(key)
            refused.append(f"{choice.multiprocessors} multiprocessors (id {choice.id}): {error}")
            continue
        made = _checked(session, handle, profile, gpu=gpu)
        found = find_compute_instance(session, gpu, gi_id=gi_id, ci_id=made.id)
        if found is None or (found.id, found.uuid) != (made.id, made.uuid):
            raise ReadBackError(
                "nvmlGpuInstanceCreateComputeInstance", gpu=gpu, detail=f"{made.uuid} is not there"
            )
        return made
    raise _undeliverable(choices, refused, profile, gpu=gpu)


def _whole(session: Session, gi: Any, profile: Profile, *, key: ProfileKey) -> list[ComputeProfile]:
    """Compute-instance profiles of all slices of a GPU instance, most multiprocessors first.

    Asked for twice where none has enough: one wrong answer takes no profile away.
    """
    best = _fitting(session.compute_profiles.certain(key), profile)
    for _ in range(2):
        if best and best[0].multiprocessors >= profile.multiprocessors:
            break
        best = _fitting(ask_compute_profiles(session, gi, key), profile)
    return best


def _fitting(offered: Iterable[ComputeProfile], profile: Profile) -> list[ComputeProfile]:
    whole = [p for p in offered if p.slices == profile.compute_slices]
    return sorted(whole, key=lambda p: (-p.multiprocessors, p.enum))


def _checked(session: Session, handle: Any, profile: Profile, *, gpu: str) -> Delivered:
    """The instance made; it is destroyed again where it has less than its profile advertises."""
    info = session.call(pynvml.nvmlComputeInstanceGetInfo_v2, handle, gpu=gpu)
    uuid = session.call(pynvml.nvmlDeviceGetUUID, info.device, gpu=gpu)
    shown = session.call(pynvml.nvmlDeviceGetAttributes_v2, info.device, gpu=gpu)
    found = Delivered(info.id, uuid, shown.multiprocessorCount, shown.memorySizeMB)
    least = profile.memory_mib * _LEAST_MEMORY_SHARE
    if found.multiprocessors >= profile.multiprocessors and found.memory_mib >= least:
        return found
    session.call(pynvml.nvmlComputeInstanceDestroy, handle, gpu=gpu)
    raise UndeliverableError(
        "nvmlGpuInstanceCreateComputeInstance",
        pynvml.NVML_SUCCESS,
        gpu=gpu,
        profile=profile.name,
        detail=f"it advertises {profile.multiprocessors} multiprocessors and {profile.memory_mib} "
        f"MiB, and the slice had {found.multiprocessors} and {found.memory_mib} MiB",
    )


def _undeliverable(
    choices: list[ComputeProfile], refused: list[str], profile: Profile, *, gpu: str
) -> UndeliverableError:
    most = choices[0].multiprocessors if choices else 0
    detail = f"it advertises {profile.multiprocessors} multiprocessors, and "
    if refused:
        detail += f"the driver refused a compute instance of {'; '.join(refused)}"
    elif choices:
        detail += f"the driver reports no compute instance with more than {most}"
    else:
        detail += f"the driver reports no compute instance of {profile.compute_slices} slices"
    return UndeliverableError(
        "nvmlGpuInstanceCreateComputeInstance",
        pynvml.NVML_ERROR_NOT_SUPPORTED,
        gpu=gpu,
        profile=profile.name,
        detail=detail,
        # More than that is nowhere reported: then it is all that the GPU instance has.
        deliverable=0 if refused else most,
    )
