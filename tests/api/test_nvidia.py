"""Configuration as NVIDIA's DRA driver reads it: what it is here, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from api.config import decode, decode_named
from api.errors import InvalidObjectError

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


@pytest.mark.parametrize(
    ("given", "path", "told"),
    [
        ({**GPU, "kind": "VfioDeviceConfig"}, "kind", "allowed are: GpuConfig, MigDeviceConfig"),
        ({**GPU, "sharing": {}}, "sharing.strategy", "missing; allowed are: MPS, TimeSlicing"),
        ({**GPU, "sharing": {"strategy": "None"}}, "sharing.strategy", "MPS, TimeSlicing"),
        ({**GPU, "placement": {"policy": "sws"}}, "placement", "unknown field"),
        (
            {**SLICE, "sharing": {"strategy": "TimeSlicing", "timeSlicingConfig": {}}},
            *("sharing.timeSlicingConfig", "unknown field"),
        ),
        (
            {**GPU, "sharing": {"strategy": "MPS", "timeSlicingConfig": {}}},
            *("sharing.timeSlicingConfig", "choose 'TimeSlicing'"),
        ),
        (
            {**SLICE, "sharing": {"strategy": "TimeSlicing", "mpsConfig": {}}},
            *("sharing.mpsConfig", "choose 'MPS'"),
        ),
        (
            {**GPU, **by_mps(defaultPerDevicePinnedMemoryLimit={"0": "1Gi"})},
            *("sharing.mpsConfig.defaultPerDevicePinnedMemoryLimit", "unknown field"),
        ),
        *(
            ({**GPU, **by_mps(defaultPinnedDeviceMemoryLimit=limit)}, MEMORY, "such as 512Mi")
            for limit in ("", "much", "-1Gi", "1023Ki", 0, "1Gi\nquit")
        ),
    ],
)
def test_what_cannot_be_kept_is_refused_by_the_name_that_nvidia_gives_it(
    given: dict[str, Any], path: str, told: str
) -> None:
    with pytest.raises(InvalidObjectError) as caught:
        decode(given)
    assert caught.value.path == path
    assert told in caught.value.problem
