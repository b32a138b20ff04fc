"""Configuration as NVIDIA's DRA driver reads it: what it is here, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from api.config import decode, decode_named

GPU = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig"}
SLICE = {**GPU, "kind": "MigDeviceConfig"}
MEMORY = "sharing.mpsConfig.defaultPinnedDeviceMemoryLimit"


def by_mps(**config: Any) -> dict[str, Any]:
    return {"sharing": {"strategy": "MPS", "mpsConfig": config}}


@pytest.mark.parametrize(
    ("given", "strategy", "interval"),
    [
        (GPU, "None", "Default"),
        ({**GPU, "sharing": {"strategy": "TimeSlicing"}}, "TimeSlicing", "Default"),
        (
            {**GPU, "sharing": {"strategy": "TimeSlicing", "timeSlicingConfig": {}}},
            *("TimeSlicing", "Default"),
        ),
        (
            {
                **GPU,
                "sharing": {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}},
            },
            *("TimeSlicing", "Long"),
        ),
        ({**SLICE, "sharing": {"strategy": "TimeSlicing"}}, "None", "Default"),
        ({**SLICE, "sharing": {"strategy": "MPS"}}, "MPS", "Default"),
    ],
)
def test_what_nvidias_strategies_are_here(
    given: dict[str, Any], strategy: str, interval: str
) -> None:
    config = decode(given)
    assert (config.kind, config.sharing.strategy) == (given["kind"], strategy)
    assert config.sharing.time_slicing.interval == interval
    said = decode_named(given, of_class=False)
    assert (said.sharing is not None) == ("sharing" in given)
    assert said.placement == {}


@pytest.mark.parametrize(
    ("limit", "mebibytes"),
    [("10Gi", 10240), ("512Mi", 512), ("10G", 9536), ("1.5Gi", 1536), (2**31, 2048), ("4096Ki", 4)],
)
def test_limits_of_memory_are_any_quantity_rounded_down_to_mebibytes(
    limit: object, mebibytes: int
) -> None:
    given = by_mps(defaultActiveThreadPercentage=50, defaultPinnedDeviceMemoryLimit=limit)
    mps = decode({**GPU, **given}).sharing.mps
    assert (mps.active_thread_percentage, mps.memory_mebibytes) == (50, mebibytes)
