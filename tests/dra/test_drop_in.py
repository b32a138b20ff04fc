"""The driver under NVIDIA's name: readers of its slices and classes find what they look for.

Sources: ``cmd/gpu-kubelet-plugin`` and ``demo/specs/quickstart`` of NVIDIA's DRA driver, and
``internal/pkg/transformation/dra.go`` of dcgm-exporter.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dra.cel.cel import Selectors
from dra.cel.celdata import device_data
from dra.claims.claims import class_selectors
from dra.claims.classes import generated_classes
from dra.common.resources import Obj
from dra.gpu.names import NVIDIA_DRIVER
from dra.resourceslices.nvidiadra import dra_driver, summary
from dra.resourceslices.partitions import offered
from dra.resourceslices.resourceslices import Features, SliceLayout
from tests.controller.objects import DRIVER, gpu, inventory
from tests.dra.counters import FirstFit

OF_A_GPU = {
    *("type", "uuid", "productName", "brand", "architecture", "cudaComputeCapability"),
    *("driverVersion", "cudaDriverVersion"),
    *("resource.kubernetes.io/pciBusID", "resource.kubernetes.io/pcieRoot"),
}
OF_A_SLICE = OF_A_GPU - {"uuid"} | {"profile", "parentUUID"}
CAPACITIES = {
    *("memory", "multiprocessors", "copyEngines", "decoders"),
    *("encoders", "jpegEngines", "ofaEngines"),
}
OWN = "device.attributes['gpu.nvidia.com']"
LARGE = "device.capacity['gpu.nvidia.com'].memory.isGreaterThan(quantity('10Gi'))"
FEW = "device.capacity['gpu.nvidia.com'].multiprocessors.isLessThan(quantity('30'))"
MANY = "device.capacity['gpu.nvidia.com'].multiprocessors.isGreaterThan(quantity('50'))"
A100_ONLY = f"{OWN}.productName.lowerAscii().matches('^.*a100.*$')"


def layout(driver: str = NVIDIA_DRIVER) -> SliceLayout:
    """A node with a GPU in MIG mode and one without."""
    whole = gpu(1, mig=False, brand="Nvidia", pcie_root="pci0000:01")
    cards = gpu(0, brand="Nvidia", pcie_root="pci0000:00"), whole
    node = replace(inventory("node-a", *cards), driver=driver)
    return SliceLayout(offered(node, {}, taints=True), Features())


def published(driver: str = NVIDIA_DRIVER) -> list[Obj]:
    made = layout(driver)
    specs = [made.spec(index, generation=1) for index in range(len(made))]
    names = zip(made.names(), specs, strict=True)
    return [{"metadata": {"name": name}, "spec": spec} for name, spec in names]


def devices() -> list[Obj]:
    return [device for each in published() for device in each["spec"].get("devices", ())]


def classes(driver: str = NVIDIA_DRIVER) -> dict[str, Obj]:
    return {c["metadata"]["name"]: c for c in generated_classes(driver, ["1g.5gb", "3g.20gb"])}


def test_attributes_and_capacities_are_called_as_nvidias() -> None:
    seen = {d["attributes"]["type"]["string"]: d for d in devices()}
    assert seen.keys() == {"gpu", "mig"}
    assert seen["gpu"]["attributes"].keys() == OF_A_GPU
    assert seen["mig"]["attributes"].keys() == OF_A_SLICE | {"memoryPercent"}
    assert seen["mig"]["capacity"].keys() == CAPACITIES
    assert "memory" in seen["gpu"]["capacity"]
    versions = ("cudaComputeCapability", "driverVersion", "cudaDriverVersion")
    assert all("version" in d["attributes"][name] for d in seen.values() for name in versions)


@pytest.mark.parametrize("name", ["gpu.nvidia.com", "mig.nvidia.com"])
def test_nvidias_classes_are_made_under_its_name_only(name: str) -> None:
    assert name in classes()
    assert name not in classes(DRIVER)


def test_whole_gpus_are_served_to_pods_that_ask_by_limits_as_by_nvidias_chart() -> None:
    assert classes()["gpu.nvidia.com"]["spec"]["extendedResourceName"] == "nvidia.com/gpu"
    assert "extendedResourceName" not in classes()["mig.nvidia.com"]["spec"]


@pytest.mark.parametrize(
    ("class_name", "selectors", "first"),
    [
        ("gpu.nvidia.com", [], "gpu-1"),
        ("gpu.nvidia.com", [A100_ONLY], "gpu-1"),
        ("mig.nvidia.com", [], "gpu-0-mig-1g5gb-19-6"),
        ("mig.nvidia.com", [f"{OWN}.profile == '2g.10gb'"], "gpu-0-mig-2g10gb-14-4"),
        ("mig.nvidia.com", [LARGE], "gpu-0-mig-3g20gb-9-4"),
        ("mig.nvidia.com", [FEW], "gpu-0-mig-1g5gb-19-6"),
        ("mig.nvidia.com", [MANY], "gpu-0-mig-4g20gb-5-0"),
        ("mig.nvidia.com", [f"{OWN}.profile == '1g.10gb.nowhere'"], None),
    ],
)
def test_what_its_samples_select_is_found(
    class_name: str, selectors: list[str], first: str | None
) -> None:
    expressions = [*class_selectors(classes()[class_name]), *selectors]
    evaluator = Selectors()

    def matches(device: dict[str, Any]) -> bool:
        seen = device_data(NVIDIA_DRIVER, device["attributes"], device["capacity"])
        verdicts = [evaluator.evaluate(each, seen) for each in expressions]
        return all(v.selected and not v.error for v in verdicts)

    assert FirstFit.of(layout()).allocate(matches) == first


def test_slices_of_one_gpu_can_be_asked_for_by_its_uuid() -> None:
    """Samples constrain by ``gpu.nvidia.com/parentUUID``."""
    parents = {d["attributes"]["parentUUID"]["string"] for d in devices() if "mig" in d["name"]}
    assert parents == {"GPU-node-a-0"}


def test_dcgm_exporter_maps_every_device_to_a_gpu() -> None:
    """It reads ``type``, ``uuid`` or ``parentUUID``, and ``profile``, keyed by pool and device."""
    mapped = {}
    for each in published():
        spec = each["spec"]
        assert spec["driver"] == "gpu.nvidia.com"
        for device in spec.get("devices", ()):
            texts = {n: v.get("string", "") for n, v in device["attributes"].items()}
            owner = texts["uuid"] if texts["type"] == "gpu" else texts["parentUUID"]
            mapped[spec["pool"]["name"], device["name"]] = (owner, texts.get("profile"))
    assert mapped["node-a-pool", "gpu-1"] == ("GPU-node-a-1", None)
    assert mapped["node-a-pool", "gpu-0-mig-1g5gb-19-0"] == ("GPU-node-a-0", "1g.5gb")
    assert len(mapped) == len(devices())


def test_slices_of_our_own_are_not_taken_for_nvidias() -> None:
    ours = published()
    assert dra_driver({}, map(summary, ours)) is None
    ours[-1]["metadata"]["name"] = "node-a-gpu.nvidia.com-x7k2p"
    found = dra_driver({}, map(summary, ours))
    assert found is not None
    assert "MIG devices to be made on demand" in found.sign
