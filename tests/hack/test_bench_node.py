"""The figures of the node program's benchmark, and the library that it compiles."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import cast

import pynvml
import pytest

import sim.nvml
from api.kubelet.dra.v1 import api_pb2 as v1
from dra.kube.client import KubeApi
from hack.bench.node import library
from hack.bench.node.least import Least
from hack.bench.node.table import worse
from sim.nvml.machine import GpuSpec, Machine


class _Api:
    """An API server that has one claim, on the second GPU."""

    def get(self, _resource: object, name: str, *, namespace: str) -> dict[str, object]:
        assert (name, namespace) == ("c", "n")
        result = {"request": "r", "pool": "p", "device": "gpu-1-mig-1g10gb-19-3"}
        return {"status": {"allocation": {"devices": {"results": [result]}}}}


def test_the_least_driver_makes_a_slice_its_spec_and_its_record_and_removes_them(
    tmp_path: Path,
) -> None:
    machine = Machine.create(tmp_path / "hw", [GpuSpec("H100-80GB-HBM3")] * 2)
    sim.nvml.install(machine.directory)
    pynvml.nvmlInit()
    try:
        api = cast("KubeApi", _Api())
        least = Least(api, host=machine.host_root, directory=tmp_path, telling=None)
        claims = [v1.Claim(namespace="n", name="c", uid="u")]
        answer = least.NodePrepareResources(v1.NodePrepareResourcesRequest(claims=claims), None)
        [device] = answer.claims["u"].devices
        assert device.cdi_device_ids == ["k8s.mig.dra.dev/claim=u-gpu-1-mig-1g10gb-19-3"]
        [made] = machine.gpu(1).gpu_instances
        nodes = json.loads((tmp_path / "spec-u.json").read_text())["devices"][0]["containerEdits"]
        access = machine.host_root / f"proc/driver/nvidia/capabilities/gpu1/mig/gi{made.id}/access"
        assert f"DeviceFileMinor: {nodes['deviceNodes'][1]['minor']}\n" in access.read_text()
        assert json.loads((tmp_path / "record.json").read_text())["u"]["gi"] == made.id
        least.NodeUnprepareResources(v1.NodeUnprepareResourcesRequest(claims=claims), None)
        assert not machine.gpu(1).gpu_instances
        assert not (tmp_path / "spec-u.json").exists()
        assert json.loads((tmp_path / "record.json").read_text()) == {}
    finally:
        sim.nvml.uninstall()


def test_what_is_worse_is_named_with_both_ratios() -> None:
    stored = {"floor": 1.0, "prepare": 2.0, "unprepare": 2.0}
    assert worse({"floor": 1.0, "prepare": 2.9, "unprepare": 0.1}, stored, slack=1.5) == []
    assert worse({"floor": 1.0, "prepare": 3.1}, stored, slack=1.5) == [
        "prepare: 3.10 floors, the stored table has 2.00",
        "unprepare: not measured, the stored table has 2.00 floors",
    ]


_LOOK = """
import sys, pynvml
from kubeletplugin.nvml.instances import create_gpu_instance, destroy_gpu_instance
from kubeletplugin.nvml.instances import destroy_compute_instances
from kubeletplugin.nvml.instances import create_compute_instance
from kubeletplugin.nvml.gpus import discover
from kubeletplugin.nvml.instances import list_gpu_instances
from kubeletplugin.nvml.session import Session

session = Session()
session.open()
[card, _] = discover(session).cards
profile = card.geometry.profiles[0]
made = create_gpu_instance(
    session, card.uuid, profile=profile, placement=profile.placements[-1]
)
part = create_compute_instance(session, card.uuid, gi_id=made.id, profile=profile)
print(card.uuid, profile.name, part.multiprocessors)
print(list_gpu_instances(session, card.uuid, card.geometry) == (made,))
destroy_compute_instances(session, card.uuid, made.id)
destroy_gpu_instance(session, card.uuid, made.id)
print(list_gpu_instances(session, card.uuid, card.geometry) == ())
"""


@pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler")
def test_the_compiled_library_makes_and_removes_slices(tmp_path: Path) -> None:
    machine = Machine.create(tmp_path / "hw", [GpuSpec("H100-80GB-HBM3")] * 2)
    description = tmp_path / "nvml.txt"
    description.write_text(library.description(machine))
    built = library.build(tmp_path)
    assert ctypes.CDLL(str(built)).nvmlShutdown() != 0
    environment = os.environ | {"LD_LIBRARY_PATH": str(tmp_path), "NVML_MACHINE": str(description)}
    command = [sys.executable, "-c", _LOOK]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    uuid = machine.gpu(0).uuid
    assert done.stdout.splitlines() == [f"{uuid} 1g.10gb 16", "True", "True"]
    left = machine.host_root / "proc/driver/nvidia/capabilities/gpu0/mig"
    assert list(left.iterdir()) == []
