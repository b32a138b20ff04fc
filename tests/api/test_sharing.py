"""Sharing as users write it, and every way to write it wrong."""

from __future__ import annotations

from typing import Any

import pytest

from api.config import API_VERSION, GPU_KIND, KIND, decode, decode_named
from api.errors import InvalidObjectError

SLICE = {"apiVersion": API_VERSION, "kind": KIND}
GPU = {"apiVersion": API_VERSION, "kind": GPU_KIND}


def test_what_is_left_out_limits_nothing() -> None:
    sharing = decode({**SLICE, "sharing": {"strategy": "MPS"}}).sharing
    assert (sharing.mps.limits_threads, sharing.mps.memory_mebibytes) == (False, None)
    turns = decode({**GPU, "sharing": {"strategy": "TimeSlicing"}}).sharing.time_slicing
    assert turns.interval == "Default"
    assert decode(GPU).sharing.strategy == "None"


@pytest.mark.parametrize(("text", "mebibytes"), [("512Mi", 512), ("8Gi", 8192), ("1Mi", 1)])
def test_a_limit_of_memory_is_told_in_mebibytes(text: str, mebibytes: int) -> None:
    limits = {"activeThreadPercentage": 50, "pinnedDeviceMemoryLimit": text}
    mps = decode({**SLICE, "sharing": {"strategy": "MPS", "mps": limits}}).sharing.mps
    assert (mps.memory_mebibytes, mps.limits_threads) == (mebibytes, True)


def test_only_a_configuration_that_names_sharing_says_anything_of_it() -> None:
    assert decode_named(SLICE, of_class=False).sharing is None
    named = decode_named({**GPU, "sharing": {"strategy": "None"}}, of_class=False)
    assert named.sharing is not None
    assert (named.kind, named.sharing.strategy) == (GPU_KIND, "None")


@pytest.mark.parametrize(
    ("head", "sharing", "path", "told"),
    [
        (SLICE, {}, "sharing.strategy", "missing; allowed are: MPS, None, TimeSlicing"),
        (SLICE, {"strategy": "TimeSlicing"}, "sharing.strategy", "for slices are: None, MPS"),
        (GPU, {"strategy": "mps"}, "sharing.strategy", "allowed are: MPS, None, TimeSlicing"),
        (GPU, {"strategy": "MPS", "maxClients": 2}, "sharing.maxClients", "unknown field"),
        (
            GPU,
            {"strategy": "TimeSlicing", "timeSlicing": {"interval": "Tiny"}},
            "sharing.timeSlicing.interval",
            "allowed are: Default, Long, Medium, Short",
        ),
        (
            GPU,
            {"strategy": "MPS", "timeSlicing": {"interval": "Short"}},
            "sharing.timeSlicing",
            "leave it out",
        ),
        (
            GPU,
            {"strategy": "TimeSlicing", "mps": {"activeThreadPercentage": 5}},
            "sharing.mps",
            "choose 'MPS'",
        ),
        (
            SLICE,
            {"strategy": "MPS", "mps": {"activeThreadPercentage": 0}},
            "sharing.mps.activeThreadPercentage",
            ">= 1",
        ),
        (
            SLICE,
            {"strategy": "MPS", "mps": {"activeThreadPercentage": 101}},
            "sharing.mps.activeThreadPercentage",
            "<= 100",
        ),
        *(
            (
                SLICE,
                {"strategy": "MPS", "mps": {"pinnedDeviceMemoryLimit": text}},
                "sharing.mps.pinnedDeviceMemoryLimit",
                "such as 512Mi or 8Gi",
            )
            for text in ("8G", "0Mi", "-1Gi", "1.5Gi", "8Gi\nquit", "8 Gi", "99999999Gi")
        ),
    ],
)
def test_a_mistake_is_told_with_its_field_and_the_remedy(
    head: dict[str, Any], sharing: dict[str, Any], path: str, told: str
) -> None:
    with pytest.raises(InvalidObjectError) as caught:
        decode({**head, "sharing": sharing})
    assert caught.value.path == path
    assert told in caught.value.problem
    assert str(caught.value).startswith(f"{head['kind']}: field {path!r}")
