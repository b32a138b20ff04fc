"""Sharing as users write it, and every way to write it wrong."""

from __future__ import annotations

import pytest

from api.config import API_VERSION, GPU_KIND, KIND, decode

SLICE = {"apiVersion": API_VERSION, "kind": KIND}
GPU = {"apiVersion": API_VERSION, "kind": GPU_KIND}


@pytest.mark.parametrize(("text", "mebibytes"), [("512Mi", 512), ("8Gi", 8192), ("1Mi", 1)])
def test_a_limit_of_memory_is_told_in_mebibytes(text: str, mebibytes: int) -> None:
    limits = {"activeThreadPercentage": 50, "pinnedDeviceMemoryLimit": text}
    mps = decode({**SLICE, "sharing": {"strategy": "MPS", "mps": limits}}).sharing.mps
    assert (mps.memory_mebibytes, mps.limits_threads) == (mebibytes, True)
