"""The half of the check that only reads: GPUs and their other managers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kubeletplugin.check.report import Item, Mark
from sim.nvml.cabi import Return
from sim.nvml.faults import Fault
from tests.helpers.waiting import PATIENCE
from tests.kubeletplugin.check.conftest import A100, H100, MakeNode, marks, text

OF_A_POD = {"KUBECONFIG", "NODE_NAME", "KUBERNETES_SERVICE_HOST"}


SCREEN_LINES, SCREEN_COLUMNS = 45, 100


def bare(folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    """The program where there is no driver: host and kubelet are in an empty folder."""
    for name in ("proc", "dev"):
        (folder / name).mkdir(exist_ok=True)
    (folder / "proc/devices").write_text(
        "Character devices:\n  1 mem\n\nBlock devices:\n  7 loop\n"
    )
    roots = (
        *("--host-root", str(folder), "--kubelet-root", str(folder / "kubelet")),
        *("--cdi-root", str(folder / "cdi")),
    )
    hidden = {k: v for k, v in os.environ.items() if k not in OF_A_POD}
    return subprocess.run(
        [sys.executable, "-m", "kubeletplugin", *roots, "check", *more],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
        env=hidden,
    )


def test_without_any_gpu_one_screen_says_what_is_missing_and_the_remedy(folder: Path) -> None:
    file = folder / "report.json"
    done = bare(folder, "--json", str(file))
    assert done.returncode == 1, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) <= SCREEN_LINES
    assert max(map(len, lines)) <= SCREEN_COLUMNS
    assert lines[0].startswith("no slice can be made")
    report = json.loads(file.read_text())
    missing = {f["item"] for f in report["findings"] if f["mark"] == "missing"}
    assert {"nvml", "kernel-module", "capabilities", "device-nodes", "libraries"} <= missing
    assert all(f["remedy"] for f in report["findings"] if f["mark"] == "missing")
    assert "libnvidia-ml.so.1" in done.stdout


@pytest.mark.parametrize("lost", [True, False], ids=["lost", "refuses a call"])
def test_one_gpu_that_fails_hides_no_other(make_node: MakeNode, *, lost: bool) -> None:
    node = make_node(A100, A100)
    if lost:
        node.machine.lose(1)
    else:
        function = "nvmlDeviceGetMigMode"
        refused = Fault(function=function, action="return", code=Return.UNKNOWN, times=0, gpu=1)
        node.machine.inject(refused)
    checked = node.check()
    assert checked.code == 0, checked.screen
    assert ("LOST" if lost else "nvmlDeviceGetMigMode") in text(checked.report, Item.GPUS)
    assert "1 of" in text(checked.report, Item.GPUS)


def test_other_managers_are_known_by_process_and_by_socket(make_node: MakeNode) -> None:
    node = make_node(A100)
    assert marks(node.check().report, Item.OTHER_MANAGERS) == {Mark.OK}
    proc = node.machine.host_root / "proc/4711"
    (proc / "fd").mkdir(parents=True)
    (proc / "comm").write_text("nvidia-mig-mana\n")
    (proc / "fd/7").symlink_to("/dev/nvidiactl")
    report = node.check().report
    assert "mig-manager" in text(report, Item.OTHER_MANAGERS)
    assert any("nvidia-mig-mana (4711)" in f for f in report.facts[Item.OTHER_MANAGERS])
    registry = node.machine.host_root / "var/lib/kubelet/plugins_registry"
    (registry / "gpu.nvidia.com-reg.sock").touch()
    assert "NVIDIA's DRA driver" in text(node.check().report, Item.OTHER_MANAGERS)


def test_what_the_driver_says_of_a_gpu_is_shown_with_those_who_have_it_open(
    make_node: MakeNode,
) -> None:
    node = make_node(H100, H100)
    node.machine.ask_recovery(0, 1)
    node.machine.disturb(0, fabric=3)
    node.machine.disturb(1, remap_pending=True)
    node.machine.start_monitor(0, 4711)
    report = node.check().report
    assert Mark.MISSING not in marks(report, Item.GPUS)
    said = text(report, Item.GPUS)
    assert "the driver asks for a reset" in said
    words = "1 x recovery action {}, fabric {}, compute mode Default"
    assert words.format("Reset", "Completed") + ", open in dcgm-exporter (4711)" in said
    assert words.format("None", "NotSupported") in said
    assert "a memory row is remapped at the next reset" in said
    assert [bool(g.unavailable) for g in report.gpus] == [True, False]
    node.machine.disturb(1, fabric=1)
    assert "none of 2 GPUs in MIG mode" in text(node.check().report, Item.GPUS)


def test_profiles_are_told_without_mig_mode(make_node: MakeNode) -> None:
    node = make_node(H100)
    node.machine.set_mig_mode(0, enabled=False)
    assert "1g.10gb x7, 2g.20gb x3" in text(node.check().report, Item.PROFILES)


# -- times that a check measures, and a simulated machine that takes them as its latencies


def test_nodes_that_nobody_may_make_are_told(make_node: MakeNode) -> None:
    node = make_node(A100)
    assert marks(node.check().report, Item.DEVICE_NODES) == {Mark.OK}
    node.machine.remove_nodes(makes=False)
    checked = node.check()
    assert checked.code == 1
    assert "DRIVER_NOT_LOADED" in checked.screen
    assert "ModifyDeviceFiles" in text(checked.report, Item.DEVICE_NODES)
