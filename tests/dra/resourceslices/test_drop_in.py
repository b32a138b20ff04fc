"""The driver under NVIDIA's name: readers of its slices and classes find what they look for.

Sources: ``cmd/gpu-kubelet-plugin`` and ``demo/specs/quickstart`` of NVIDIA's DRA driver, and
``internal/pkg/transformation/dra.go`` of dcgm-exporter.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from dra.claims.claims import Use, find_crowd, read_requests
from dra.claims.classes import generated_classes, read_class
from dra.claims.requests import requested_settings
from dra.common.resources import Obj
from dra.gpu.names import NVIDIA_DRIVER
from dra.resourceslices.nvidiadra import dra_driver, summary
from dra.resourceslices.partitions import offered
from dra.resourceslices.resourceslices import Features, SliceLayout
from tests.controller.helpers.objects import DRIVER, gpu, inventory
from tests.dra.gpus import node_of, product_geometry, sliced_gpu
from tests.dra.resourceslices.nvidiasamples import SAMPLES

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
H100 = {
    "1g10gb-19": ("9984Mi", "16", "1", "1", "1", "0", [0, 1, 2, 3, 4, 5, 6]),
    "1g10gb-me-20": ("9984Mi", "16", "1", "1", "1", "1", [0, 1, 2, 3, 4, 5, 6]),
    "1g20gb-15": ("20096Mi", "26", "1", "1", "1", "0", [0, 2, 4, 6]),
    "2g20gb-14": ("20096Mi", "32", "2", "2", "2", "0", [0, 2, 4]),
    "3g40gb-9": ("40448Mi", "60", "3", "3", "3", "0", [0, 4]),
    "4g40gb-5": ("40448Mi", "64", "4", "4", "4", "0", [0]),
    "7g80gb-0": ("81152Mi", "132", "8", "7", "7", "1", [0]),
}
"""Devices of NVIDIA's driver 0.5.0 on an H100-80GB, as karpenter-provider-aws has captured them
(``pkg/providers/nvidiadra``): memory, multiprocessors, engines, and where they begin."""


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
    assert seen["gpu"]["attributes"].keys() >= OF_A_GPU
    assert seen["gpu"]["attributes"]["index"] == {"int": 1}
    assert seen["mig"]["attributes"].keys() >= OF_A_SLICE
    assert not seen["mig"]["attributes"].keys() & {"uuid", "index"}
    assert seen["mig"]["capacity"].keys() == CAPACITIES
    assert "memory" in seen["gpu"]["capacity"]
    versions = ("cudaComputeCapability", "driverVersion", "cudaDriverVersion")
    assert all("version" in d["attributes"][name] for d in seen.values() for name in versions)
    for device in seen.values():
        forms = {n: next(iter(v)) for n, v in device["attributes"].items()}
        of_texts = forms.keys() & (OF_A_GPU | OF_A_SLICE) - {*versions}
        assert {forms[n] for n in of_texts} == {"string"}


def test_an_h100_is_described_as_by_nvidias_driver() -> None:
    card = sliced_gpu(0, product_geometry("H100-80GB-HBM3"))
    made = SliceLayout(
        offered(replace(node_of(card), driver=NVIDIA_DRIVER), {}, taints=True), Features()
    )
    seen: dict[str, set[int]] = {}
    for each in (made.spec(index, generation=1) for index in range(len(made))):
        for device in each.get("devices", ()):
            name, _, start = device["name"].removeprefix("gpu-0-mig-").rpartition("-")
            seen.setdefault(name, set()).add(int(start))
            of_name = ("memory", "multiprocessors", "copyEngines", "decoders", "jpegEngines")
            values = [device["capacity"][n]["value"] for n in (*of_name, "ofaEngines")]
            assert values == [*H100[name][:-1]], name
    assert {name: sorted(starts) for name, starts in seen.items()} == {
        name: row[-1] for name, row in H100.items()
    }


@pytest.mark.parametrize("name", ["gpu.nvidia.com", "mig.nvidia.com"])
def test_nvidias_classes_are_made_under_its_name_only(name: str) -> None:
    assert name in classes()
    assert name not in classes(DRIVER)


@pytest.mark.parametrize("name", SAMPLES)
def test_the_sharing_of_its_samples_is_refused_nowhere(name: str) -> None:
    sample = SAMPLES[name]
    requests = read_requests(sample.devices["requests"])
    known = {n: read_class(obj, NVIDIA_DRIVER) for n, obj in classes().items()}
    sharing = requested_settings(sample.devices.get("config", ()), known, NVIDIA_DRIVER)
    assert sharing.problem(requests) == ""
    by_mps = dict.fromkeys(sample.claims, sharing.by_mps(requests))
    for container in sample.containers:
        assert find_crowd([Use(*use) for use in container], by_mps) == ()
    told = [(sharing.sharing(r).interval, sharing.sharing(r).by_mps) for r in requests]
    if name == "gpu-test5":
        assert told == [("Long", False), ("", True)]


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
