"""Labels of nodes are those of GPU feature discovery."""

from __future__ import annotations

import re
from dataclasses import replace

from controller.keep.labels import node_labels
from tests.controller.helpers.objects import gpu, inventory

VALUE = re.compile(r"([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?")


def test_they_tell_of_gpus_and_profiles() -> None:
    found = node_labels(
        replace(
            inventory("n", gpu(0, "n"), gpu(1, "n")),
            driver_version="580.65.06",
            cuda_driver_version="13.0",
        )
    )
    expected = {
        "nvidia.com/mig.capable": "true",
        "nvidia.com/mig.strategy": "mixed",
        "nvidia.com/gpu.count": "2",
        "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB",
        "nvidia.com/gpu.memory": "40960",
        "nvidia.com/cuda.driver-version.full": "580.65.06",
        "nvidia.com/cuda.driver-version.revision": "06",
        "nvidia.com/cuda.runtime-version.minor": "0",
        "nvidia.com/mig-1g.5gb.count": "14",
        "nvidia.com/mig-2g.10gb.count": "6",
        "nvidia.com/mig-3g.20gb.count": "4",
        "nvidia.com/mig-7g.40gb.count": "2",
        "nvidia.com/mig-1g.5gb.me.count": "2",
        "nvidia.com/mig-1g.10gb.count": "8",
        "nvidia.com/mig-1g.5gb.slices.gi": "1",
    }
    assert {key: found.get(key) for key in expected} == expected
    assert all(VALUE.fullmatch(value) for value in found.values())


def test_gpus_without_mig_mode_count_and_have_no_slices() -> None:
    off = replace(gpu(0, "n"), mig_enabled=False)
    found = node_labels(inventory("n", off, gpu(1, "n")))
    assert found["nvidia.com/gpu.count"] == "2"
    assert found["nvidia.com/mig-1g.5gb.count"] == "7"
    none = replace(off, geometry=None)
    found = node_labels(inventory("n", none))
    assert found["nvidia.com/mig.capable"] == "false"
    assert not any("mig-" in key or "strategy" in key for key in found)


def test_most_gpus_give_the_product() -> None:
    others = [replace(gpu(n, "n"), product_name="NVIDIA H100 80GB HBM3") for n in (1, 2)]
    found = node_labels(inventory("n", gpu(0, "n"), *others))
    assert found["nvidia.com/gpu.product"] == "NVIDIA-H100-80GB-HBM3"
    assert found["nvidia.com/gpu.count"] == "3"


def test_what_no_label_can_hold_is_changed_and_what_is_unknown_left_out() -> None:
    odd = replace(gpu(0, "n"), product_name="GPU (beta)/" + "x" * 80, architecture="", memory_mib=0)
    found = node_labels(inventory("n", odd))
    assert VALUE.fullmatch(found["nvidia.com/gpu.product"])
    assert "nvidia.com/gpu.family" not in found
    assert "nvidia.com/gpu.memory" not in found
    assert node_labels(replace(inventory("n"), gpus=())) == {}
