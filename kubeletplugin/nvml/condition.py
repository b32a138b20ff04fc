"""Condition of a GPU apart from its instances: the driver's word, and its consequences here.

The recovery action is the driver's own verdict (nvml.h, NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, from
driver 565 on; open-gpu-kernel-modules, gpu.c, _gpuRefreshRecoveryActionInLock). Source of the
meaning of each action: NVIDIA, "GPU Memory Error Management", error recovery and response flags.
"""

from __future__ import annotations

from collections.abc import Iterator
from ctypes import byref
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import pynvml

from dra.gpu.inventory import GpuHealth, GpuReason
from kubeletplugin.nvml.errors import reset
from kubeletplugin.nvml.session import Session

_FIELDS = (
    pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION,
    pynvml.NVML_FI_DEV_REMAPPED_PENDING,
    pynvml.NVML_FI_DEV_REMAPPED_FAILURE,
    pynvml.NVML_FI_DEV_ECC_CURRENT,
    pynvml.NVML_FI_DEV_ECC_PENDING,
)
_UNDECIDED = 0xFF
"""Recovery action that the kernel module reports before it has decided on one (g_gpu_nvoc.h)."""

_NONE, _RESET, _REBOOT, _DRAIN_P2P, _DRAIN_AND_RESET, _IMEX, _BUS_RESET, _SYSTEM_REBOOT = range(8)
_ACTIONS = (
    "None",
    "Reset",
    "Reboot",
    "DrainP2P",
    "DrainAndReset",
    "RecoverImexDomain",
    "BusReset",
    "SystemReboot",
)
_FABRIC = ("NotSupported", "NotStarted", "InProgress", "Completed")
_NO_FABRIC, _NOT_STARTED, _IN_PROGRESS, _REGISTERED = range(4)
_COMPUTE_MODES = ("Default", "ExclusiveThread", "Prohibited", "ExclusiveProcess")
_DEFAULT, _EXCLUSIVE_THREAD, _PROHIBITED, _EXCLUSIVE_PROCESS = range(4)
_GUEST = pynvml.NVML_GPU_VIRTUALIZATION_MODE_VGPU
_HOSTS = (
    pynvml.NVML_GPU_VIRTUALIZATION_MODE_HOST_VGPU,
    pynvml.NVML_GPU_VIRTUALIZATION_MODE_HOST_VSGA,
)

_REPLACE = "a memory row could not be remapped: the GPU is to be replaced (NVIDIA's RMA policy)"


@dataclass(frozen=True, slots=True)
class Condition:
    """The driver's word on a GPU, in NVML's numbers; a field is None if the driver does not say.

    ``recovery``: recovery action. ``remap_pending``, ``remap_failed``: a memory row is to be
    remapped at the next reset, or could not be. ``ecc``, ``ecc_pending``: ECC mode now, and after
    the next reset. ``fabric``: state of the NVLink fabric. ``accepts_work``: the GPU takes work
    under confidential computing; None unless that is on.
    """

    recovery: int | None = None
    remap_pending: int | None = None
    remap_failed: int | None = None
    ecc: int | None = None
    ecc_pending: int | None = None
    fabric: int | None = None
    compute_mode: int | None = None
    virtualization: int | None = None
    accepts_work: int | None = None


UNSAID = Condition()


def read_condition(
    session: Session, device: Any, *, gpu: str, before: Condition | None = None
) -> Condition:
    """Condition of a GPU now; a field that cannot be read has its value of ``before``.

    Fields that do not change while the driver is loaded are read only without ``before``.

    Raises:
        GpuLostError: the GPU is gone.
        DriverUnavailableError: the driver is gone.
        HangError: a call has not come back.
    """
    last, ask = before or UNSAID, partial(session.told, gpu=gpu)
    known = (last.recovery, last.remap_pending, last.remap_failed, last.ecc, last.ecc_pending)
    values = ask(pynvml.nvmlDeviceGetFieldValues, device, _FIELDS, instead=None)
    if values is not None:
        known = tuple(map(_value, values, known))  # type: ignore[assignment]
    recovery, remap_pending, remap_failed, ecc, ecc_pending = known
    fabric, virtualization, accepting = last.fabric, last.virtualization, last.accepts_work
    if before is None or fabric in {_NOT_STARTED, _IN_PROGRESS, _REGISTERED}:
        info = pynvml.c_nvmlGpuFabricInfoV_t()
        answer = ask(pynvml.nvmlDeviceGetGpuFabricInfoV, device, byref(info), instead=None)
        fabric = fabric if answer is None else info.state
    if before is None:
        virtualization = ask(pynvml.nvmlDeviceGetVirtualizationMode, device, instead=None)
        state = ask(pynvml.nvmlSystemGetConfComputeState, instead=None)
        accepting = 1 if state is not None and state.ccFeature else None
    if accepting is not None:
        accepting = ask(pynvml.nvmlSystemGetConfComputeGpusReadyState, instead=accepting)
    return Condition(
        recovery=None if recovery == _UNDECIDED else recovery,
        remap_pending=remap_pending,
        remap_failed=remap_failed,
        ecc=ecc,
        ecc_pending=ecc_pending,
        fabric=fabric,
        compute_mode=ask(pynvml.nvmlDeviceGetComputeMode, device, instead=last.compute_mode),
        virtualization=virtualization,
        accepts_work=accepting,
    )


def _value(field: Any, before: int | None) -> int | None:
    """Value of one of ``_FIELDS``, all of which are unsigned; ``before`` if it cannot be read."""
    return before if field.nvmlReturn != pynvml.NVML_SUCCESS else int(field.value.uiVal)


@lru_cache(maxsize=64)
def trouble(condition: Condition, *, mig: bool, uuid: str, name: str) -> tuple[str, str]:
    """Reason and text why nothing new is given out on a GPU; both empty if there is none.

    ``mig``: the GPU is in MIG mode. ``uuid``, ``name``: of the GPU, for remedies.
    """
    action = condition.recovery
    if action is not None and action not in {
        _NONE,
        _IMEX,
    }:  # a GPU's own memory needs no IMEX domain
        reason, words = _RECOVERY.get(action, _RECOVERY_UNKNOWN)
        return reason, words.format(mend=reset(uuid, gpu=name), action=_word(_ACTIONS, action))
    return next(_obstacles(condition, mig=mig, uuid=uuid), ("", ""))


def _obstacles(condition: Condition, *, mig: bool, uuid: str) -> Iterator[tuple[str, str]]:
    if condition.recovery is None and condition.remap_failed:
        yield GpuReason.RECOVERY_REQUIRED, _REPLACE
    if condition.virtualization in _HOSTS:
        text = "the GPU belongs to virtual machines (host of vGPUs); keep the plugin off this node"
        yield GpuReason.VIRTUALIZED, text
    if condition.virtualization == _GUEST and mig:
        text = "the GPU is a vGPU, on which no slices are made; pass the GPU through to the machine"
        yield GpuReason.VIRTUALIZED, text
    if condition.accepts_work == 0:
        text = (
            "confidential computing is on, and GPUs take no work until they are attested and set "
            "ready (nvidia-smi conf-compute -srs 1)"
        )
        yield GpuReason.CONFIDENTIAL, text
    if condition.fabric in {_NOT_STARTED, _IN_PROGRESS}:
        text = (
            f"its NVLink fabric is not ready ({_word(_FABRIC, condition.fabric)}), so that CUDA "
            "answers 802 (system not yet initialized); see that the fabric manager runs on this "
            "node, in the driver's version, and where it runs in shared mode (FABRIC_MODE=1 in its "
            "configuration) that a partition with the GPU is active (fmpm -l, fmpm -a)"
        )
        yield GpuReason.FABRIC_NOT_READY, text
    exclusive = condition.compute_mode in {_EXCLUSIVE_THREAD, _EXCLUSIVE_PROCESS}
    if condition.compute_mode == _PROHIBITED or (exclusive and not mig):
        how = "with MIG mode off " if mig else ""
        mode = _word(_COMPUTE_MODES, condition.compute_mode)
        text = f"its compute mode is {mode}; set it back {how}by: nvidia-smi -i {uuid} -c 0"
        yield GpuReason.COMPUTE_MODE, text


_RECOVERY = {
    _RESET: (GpuReason.RECOVERY_REQUIRED, "the driver asks for a reset: {mend}"),
    **dict.fromkeys(
        (_REBOOT, _BUS_RESET, _SYSTEM_REBOOT),
        (
            GpuReason.RECOVERY_REQUIRED,
            "the driver asks for more than a reset ({action}): reboot the node",
        ),
    ),
    _DRAIN_P2P: (
        GpuReason.RECOVERY_ADVISED,
        (
            "the driver asks that peer-to-peer traffic ends (DrainP2P): what runs may go on, "
            "nothing new is given out; if it does not end with those programs, {mend}"
        ),
    ),
    _DRAIN_AND_RESET: (
        GpuReason.RECOVERY_ADVISED,
        (
            "the GPU runs at reduced capacity (DrainAndReset): what runs may go on, nothing new is "
            "given out; then {mend}"
        ),
    ),
}
_RECOVERY_UNKNOWN = (
    GpuReason.RECOVERY_REQUIRED,
    (
        "the driver asks for recovery action {action}, which this version does not know; see GPU "
        "Recovery Action in nvidia-smi -q"
    ),
)


@lru_cache(maxsize=64)
def health(condition: Condition, *, mig: bool, open_in: tuple[str, ...] = ()) -> GpuHealth | None:
    """Condition in words for people; None if the driver says nothing.

    ``mig``: the GPU is in MIG mode. ``open_in``: programs that have the GPU open.
    """
    if condition == UNSAID:
        return None
    return GpuHealth(
        recovery=_word(_ACTIONS, condition.recovery),
        fabric=_word(_FABRIC, condition.fabric),
        compute_mode=_word(_COMPUTE_MODES, condition.compute_mode),
        notes=tuple(_notes(condition, mig=mig)),
        open_in=open_in,
    )


def _notes(condition: Condition, *, mig: bool) -> Iterator[str]:
    if condition.recovery == _IMEX:
        yield "the driver asks for a recovery of the IMEX domain, which no device here uses"
    if condition.remap_pending:
        yield "a memory row is remapped at the next reset"
    if condition.remap_failed and condition.recovery is not None:
        yield _REPLACE
    if condition.ecc != condition.ecc_pending:
        yield f"ECC turns {'on' if condition.ecc_pending else 'off'} at the next reset"
    if condition.virtualization == _GUEST and not mig:
        yield "the GPU is a vGPU"
    if condition.accepts_work:
        yield "confidential computing is on"
    if mig and condition.compute_mode in {_EXCLUSIVE_THREAD, _EXCLUSIVE_PROCESS}:
        yield f"compute mode {_COMPUTE_MODES[condition.compute_mode]}, which is not one of slices"


def _word(words: tuple[str, ...], number: int | None) -> str:
    if number is None:
        return ""
    return words[number] if number < len(words) else str(number)
