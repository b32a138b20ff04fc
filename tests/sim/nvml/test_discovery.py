"""What pynvml learns of simulated GPUs is what their fixtures say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pynvml
import pytest
from click.testing import CliRunner, Result

from sim.__main__ import main
from sim.nvml.cabi import Return
from sim.nvml.machine import GpuSpec
from sim.nvml.products import FIXTURES, load_product, product_names
from tests.sim.nvml.calls import create_at, device, gpu_instances, placements, refused
from tests.sim.nvml.conftest import Start

PRODUCTS = product_names()


GPU_PROFILE_FIELDS = {
    "id": "id",
    "sliceCount": "slice_count",
    "instanceCount": "instance_count",
    "multiprocessorCount": "multiprocessors",
    "copyEngineCount": "copy_engines",
    "decoderCount": "decoders",
    "encoderCount": "encoders",
    "jpegCount": "jpeg",
    "ofaCount": "ofa",
    "memorySizeMB": "memory_mib",
    "isP2pSupported": "p2p",
}


def fixture(product: str) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((FIXTURES / f"{product}.json").read_text())
    return data


@pytest.mark.parametrize("product", PRODUCTS)
@pytest.mark.parametrize("version", [1, 2])
def test_profiles_by_enum_are_the_fixtures(start: Start, product: str, version: int) -> None:
    start(product)
    expected = {p["enum"]: p for p in fixture(product)["gi_profiles"]}
    for enum in range(pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
        if enum not in expected:
            with refused(Return.NOT_SUPPORTED):
                pynvml.nvmlDeviceGetGpuInstanceProfileInfo(device(), enum, version)
            continue
        info = pynvml.nvmlDeviceGetGpuInstanceProfileInfo(device(), enum, version)
        found = {ours: getattr(info, nvml) for nvml, ours in GPU_PROFILE_FIELDS.items()}
        assert found == {ours: expected[enum][ours] for ours in GPU_PROFILE_FIELDS.values()}
        if version == 2:
            assert info.name == f"MIG {expected[enum]['name']}"


@pytest.mark.parametrize("product", PRODUCTS)
def test_placements_by_id_are_the_fixtures(start: Start, product: str) -> None:
    start(product)
    for profile in fixture(product)["gi_profiles"]:
        expected = [(begin, profile["size"]) for begin in profile["starts"]]
        assert placements(device(), profile["id"]) == expected


@pytest.mark.parametrize("product", PRODUCTS)
def test_compute_profiles_of_every_gpu_instance_are_the_fixtures(
    start: Start, product: str
) -> None:
    start(product)
    for profile in fixture(product)["gi_profiles"]:
        instance = create_at(device(), profile["id"], profile["starts"][0], profile["size"])
        expected = {c["enum"]: c for c in profile["ci_profiles"]}
        for enum in range(pynvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
            ask = (instance, enum, 0)
            if enum not in expected:
                with refused(Return.NOT_SUPPORTED):
                    pynvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(*ask)
                continue
            for version in (1, 2):
                info = pynvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(*ask, version)
                assert info.id == expected[enum]["id"]
                assert info.sliceCount == expected[enum]["slice_count"]
                assert info.multiprocessorCount == expected[enum]["multiprocessors"]
                assert info.sharedDecoderCount == profile["decoders"]
            assert info.name == f"MIG {expected[enum]['name']}"
        pynvml.nvmlGpuInstanceDestroy(instance)


@pytest.mark.parametrize("product", PRODUCTS)
def test_fixtures_are_consistent_and_say_what_they_assume(product: str) -> None:
    loaded = load_product(product)
    for enum_or_id in ("enum", "id"):
        numbers = [getattr(p, enum_or_id) for p in loaded.gi_profiles]
        assert len(numbers) == len(set(numbers))
    for profile in loaded.gi_profiles:
        assert all(s + profile.size <= loaded.memory_slices for s in profile.starts)
        assert profile.memory_mib * profile.instance_count <= loaded.memory_total_mib
        assert sorted(profile.driver_order or profile.starts) == sorted(profile.starts)
        assert set(profile.assumed) <= set(profile.__struct_fields__)
        full = [c for c in profile.ci_profiles if c.slice_count == profile.slice_count]
        made = [c.multiprocessors for c in full if c.creatable]
        assert max(made) == profile.multiprocessors
        assert all(set(c.assumed) <= set(c.__struct_fields__) for c in profile.ci_profiles)
    assert loaded.whole.size == loaded.memory_slices


def test_with_mig_mode_off_profiles_and_placements_answer_and_none_is_made(start: Start) -> None:
    """All but the last as on an H100 (580.159)."""
    start(GpuSpec("A100-SXM4-40GB", mig=False))
    assert pynvml.nvmlDeviceGetGpuInstanceProfileInfo(device(), 0, 1).id == 19
    assert pynvml.nvmlDeviceGetGpuInstanceProfileInfo(device(), 0, 2).name == "MIG 1g.5gb"
    assert len(placements(device(), 19)) == 7
    assert pynvml.nvmlDeviceGetGpuInstanceRemainingCapacity(device(), 19) == 7
    assert gpu_instances(device(), 19) == []
    with refused(Return.NOT_SUPPORTED):
        create_at(device(), 19, 0, 1)


# -- the command line of the simulated hardware


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["nvml", *arguments])


def test_a_machine_is_made_cut_and_shown(tmp_path: Path) -> None:
    state = ("--state", str(tmp_path / "m"))
    gpus = ("--gpu", "A100-SXM4-40GB", "--gpu", "A30")
    assert run("init", *state, *gpus).exit_code == 0
    created = run("create", *state, "3g.20gb", "--start", "0")
    assert created.output.startswith("MIG-")
    shown = run("show", *state).output
    assert "0: NVIDIA A100-SXM4-40GB GPU-" in shown
    assert f"0:4   3g.20gb      GPU instance  1  {created.output.strip()}" in shown
    data = json.loads(run("show", *state, "--json").output)
    assert [len(g["gpu_instances"]) for g in data["gpus"]] == [1, 0]
