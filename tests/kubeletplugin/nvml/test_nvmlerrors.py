"""Codes of NVML as errors."""

from __future__ import annotations

import pynvml
import pytest

from kubeletplugin.nvml.errors import (
    GpuNotFoundError,
    InstanceNotFoundError,
    NvmlError,
    translate,
)


@pytest.mark.parametrize(
    ("operation", "kind"),
    [
        ("nvmlDeviceGetHandleByPciBusId", GpuNotFoundError),
        ("nvmlDeviceGetHandleByIndex", GpuNotFoundError),
        ("nvmlDeviceGetGpuInstanceById", InstanceNotFoundError),
        ("nvmlGpuInstanceGetComputeInstanceById", InstanceNotFoundError),
        ("nvmlGpuInstanceDestroy", InstanceNotFoundError),
    ],
)
def test_a_gpu_that_is_missing_is_no_instance_that_is_gone(
    operation: str, kind: type[NvmlError]
) -> None:
    assert type(translate(operation, pynvml.NVML_ERROR_NOT_FOUND, gpu="GPU-1")) is kind
