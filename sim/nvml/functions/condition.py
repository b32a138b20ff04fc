"""The driver's word on a GPU's condition: field values, fabric, compute mode, virtualisation."""

from typing import Any

import pynvml

from sim.nvml.border.cabi import integer, put_uint, structure, versioned
from sim.nvml.border.library import exported
from sim.nvml.border.session import Session
from sim.nvml.codes import RefusedError, Return
from sim.nvml.state import Gpu, MachineState

_COMPUTE_MODES = (0, 2, 3)


def _field(state: MachineState, gpu: Gpu, field: int) -> int | None:
    """A field's value; None for one that the driver does not have."""
    if field == pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION:
        return None if state.variants.recovery_action == "none" else gpu.recovery_action
    values = {
        pynvml.NVML_FI_DEV_ECC_CURRENT: gpu.ecc,
        pynvml.NVML_FI_DEV_ECC_PENDING: gpu.ecc_pending,
        pynvml.NVML_FI_DEV_REMAPPED_PENDING: gpu.remap_pending,
        pynvml.NVML_FI_DEV_REMAPPED_FAILURE: gpu.remap_failed,
    }
    value = values.get(field)
    return None if value is None else int(value)


@exported("nvmlDeviceGetFieldValues")
def field_values(session: Session, device: Any, count: Any, values: Any) -> None:
    """Values of fields, each with a code of its own; success as long as one of them has a value."""
    gpu, _ = session.device(device)
    state = session.store.read()
    for each in structure(values, pynvml.c_nvmlFieldValue_t * integer(count)):
        value = _field(state, gpu, each.fieldId)
        each.nvmlReturn = Return.NOT_SUPPORTED if value is None else Return.SUCCESS
        each.valueType = pynvml.NVML_VALUE_TYPE_UNSIGNED_INT
        each.value.uiVal = value or 0


@exported("nvmlDeviceGetGpuFabricInfoV")
def fabric_info(session: Session, device: Any, info: Any) -> None:
    """The state of the GPU's registration with the fabric manager."""
    gpu, _ = session.device(device)
    if not gpu.fabric and session.store.read().variants.no_fabric == "refused":
        raise RefusedError(Return.NOT_SUPPORTED)
    found = versioned(info, pynvml.c_nvmlGpuFabricInfoV_t, pynvml.nvmlGpuFabricInfo_v2)
    found.state, found.status = gpu.fabric, Return.SUCCESS


@exported("nvmlDeviceGetComputeMode")
def compute_mode(session: Session, device: Any, mode: Any) -> None:
    """Compute mode of a GPU."""
    gpu, _ = session.device(device)
    if gpu.mig and session.store.read().variants.compute_mode == "refused":
        raise RefusedError(Return.NOT_SUPPORTED)
    put_uint(mode, gpu.compute_mode)


@exported("nvmlDeviceSetComputeMode", mutation=True)
def set_compute_mode(session: Session, device: Any, mode: Any) -> None:
    """Sets the compute mode of a GPU, not in MIG mode; it lasts until the driver is unloaded."""
    target = session.target(device, "device")
    if integer(mode) not in _COMPUTE_MODES:
        raise RefusedError(Return.INVALID_ARGUMENT)
    with session.change() as state:
        gpu = session.gpu(state, target)
        if gpu.mig:
            raise RefusedError(Return.NOT_SUPPORTED)
        gpu.compute_mode = integer(mode)


@exported("nvmlDeviceGetVirtualizationMode")
def virtualization_mode(session: Session, device: Any, mode: Any) -> None:
    """Virtualisation mode: none, passed through, a vGPU of a guest, or a host of vGPUs."""
    put_uint(mode, session.device(device)[0].virtualization)


@exported("nvmlSystemGetConfComputeState", on_handle=False)
def confidential_computing(session: Session, state: Any) -> None:
    """State of confidential computing: on or off."""
    on = session.store.read().confidential
    found = structure(state, pynvml.c_nvmlConfComputeSystemState_t)
    found.environment, found.ccFeature, found.devToolsMode = (2 if on else 0), int(on), 0


@exported("nvmlSystemGetConfComputeGpusReadyState", on_handle=False)
def accepts_work(session: Session, accepting: Any) -> None:
    """Readiness of GPUs for work with confidential computing; NOT_SUPPORTED without."""
    state = session.store.read()
    if not state.confidential:
        raise RefusedError(Return.NOT_SUPPORTED)
    put_uint(accepting, int(state.accepts_work))
