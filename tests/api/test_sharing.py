"""Sharing as users write it, and every way to write it wrong."""

from __future__ import annotations

import pytest

from api.config import API_VERSION, GPU_KIND, KIND, decode, decode_named

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
