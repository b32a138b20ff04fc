"""The figures of the node program's benchmark, and the library that it compiles."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hack.bench.node import library
from hack.bench.node.figures import Row, percentile, ratios, rendered, worse
from hack.bench.node.measures import smallest_slices
from sim.nvml.machine import GpuSpec, Machine

ROWS = [
    Row("floor", "floor of a Prepare", 2.0, "ms", ratio=1.0),
    Row("prepare", "Prepare, paced, p50", 5.0, "ms", ratio=2.5, most=5.0, rival="5.8 ms"),
    Row("threads", "threads after start", 34, ""),
]


@pytest.mark.parametrize(
    ("share", "wanted"), [(0.5, 50.0), (0.99, 99.0), (1.0, 100.0), (0.001, 1.0)]
)
def test_a_percentile_is_one_of_the_values(share: float, wanted: float) -> None:
    assert percentile(map(float, range(100, 0, -1)), share) == wanted


def test_there_is_no_percentile_of_nothing() -> None:
    with pytest.raises(ValueError, match="no values"):
        percentile([], 0.5)


def test_a_table_that_was_stored_is_read_again() -> None:
    page = f"# Heading\n\n| other | table |\n|---|---|\n| a | b |\n\n{rendered(ROWS)}\n\nText."
    assert ratios(page) == {"floor": 1.0, "prepare": 2.5}


def test_what_is_worse_is_named_with_both_ratios() -> None:
    stored = {"floor": 1.0, "prepare": 2.0, "unprepare": 2.0}
    assert worse({"floor": 1.0, "prepare": 2.9, "unprepare": 0.1}, stored, slack=1.5) == []
    assert worse({"floor": 1.0, "prepare": 3.1}, stored, slack=1.5) == [
        "prepare: 3.10 floors, the stored table has 2.00",
        "unprepare: not measured, the stored table has 2.00 floors",
    ]


def test_claims_are_spread_over_all_gpus_first(tmp_path: Path) -> None:
    machine = Machine.create(tmp_path / "hw", [GpuSpec("H100-80GB-HBM3")] * 2)
    assert smallest_slices(machine)[:3] == [
        "gpu-0-mig-1g10gb-19-0",
        "gpu-1-mig-1g10gb-19-0",
        "gpu-0-mig-1g10gb-19-1",
    ]


_LOOK = """
import sys, pynvml
from kubeletplugin.nvml.changes import create_gpu_instance, destroy_gpu_instance
from kubeletplugin.nvml.changes import destroy_compute_instances
from kubeletplugin.nvml.compute import create_compute_instance
from kubeletplugin.nvml.discovery import discover
from kubeletplugin.nvml.instances import list_gpu_instances
from kubeletplugin.nvml.session.session import Session

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
    environment = os.environ | {
        "LD_LIBRARY_PATH": str(tmp_path),
        "NVML_MACHINE": str(description),
    }
    command = [sys.executable, "-c", _LOOK]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    uuid = machine.gpu(0).uuid
    assert done.stdout.splitlines() == [f"{uuid} 1g.10gb 16", "True", "True"]
    left = machine.host_root / "proc/driver/nvidia/capabilities/gpu0/mig"
    assert list(left.iterdir()) == []
