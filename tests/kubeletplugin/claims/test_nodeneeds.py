"""Missing files of the driver: said before anything is cut, and over when they are back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from dra.claims.sharing import OFFERED, TIME_SLICING
from dra.common.resources import NODES
from dra.gpu.mignode import from_mignode
from kubeletplugin.claims import janitor
from kubeletplugin.host.driverfiles import HOOK_NAMES
from sim.nvml.machine import GpuSpec
from sim.nvml.state import HostPart
from tests.helpers.waiting import wait_for
from tests.kubeletplugin.cdi.rules import hold
from tests.kubeletplugin.helpers.reported import events, verdict
from tests.kubeletplugin.helpers.rig import Rig
from tests.kubeletplugin.host.layouts import hook_program, program

SLICE = "gpu-0-mig-1g5gb-19-4"
PARTS: dict[HostPart, str] = {
    "libraries": "found no libcuda.so.570.86.15",
    "uvm": "modprobe nvidia-uvm",
    "capabilities": "has no nvidia-caps",
}
RTX_PRO = "RTX-PRO-6000-Blackwell-Server"


def gpu_reasons(rig: Rig) -> set[str]:
    return {gpu.get("reason", "") for gpu in rig.mignode()["status"]["gpus"]}


def ready(rig: Rig) -> tuple[str, str]:
    [condition] = [c for c in rig.mignode()["status"]["conditions"] if c["type"] == "Ready"]
    return condition["status"], condition.get("message", "")


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.usefixtures("frequent_looks")
def test_what_is_missing_is_said_and_nothing_is_cut_until_it_is_there(
    make_rig: Callable[..., Rig], part: HostPart
) -> None:
    rig = make_rig()
    rig.machine.take_away(part)
    rig.start()
    wait_for("the GPUs' reason", lambda: gpu_reasons(rig) == {"DriverIncomplete"})
    status, message = ready(rig)
    assert status == "False"
    assert PARTS[part] in message
    wait_for("the event", lambda: PARTS[part] in dict(events(rig, rig.node))["DriverIncomplete"])
    ref = rig.claim(SLICE)
    for _ in range(2):
        assert PARTS[part] in rig.refused(ref)
    assert rig.mutations() == [], "a slice was made and destroyed"
    assert rig.clean()
    assert PARTS[part] in verdict(rig, ref), "the controller may place it elsewhere"
    rig.machine.bring_back(part)
    wait_for("the GPUs", lambda: gpu_reasons(rig) == {""})
    assert ready(rig)[0] == "True"
    rig.prepared(ref)
    assert verdict(rig, ref) == ""


def name_runtime(rig: Rig, runtime: str) -> None:
    status = {"status": {"nodeInfo": {"containerRuntimeVersion": runtime}}}
    rig.api.patch(NODES, rig.node, status, subresource="status")


@pytest.mark.usefixtures("frequent_looks")
def test_nothing_is_cut_for_a_container_runtime_that_would_drop_the_slice(
    make_rig: Callable[..., Rig],
) -> None:
    rig = make_rig()
    name_runtime(rig, "docker://28.3.1")
    rig.start()
    wait_for("the GPUs' reason", lambda: gpu_reasons(rig) == {"DriverIncomplete"})
    assert "cri-dockerd drops CDI devices" in ready(rig)[1]
    ref = rig.claim(SLICE)
    assert "let kubelet use containerd or CRI-O" in rig.refused(ref)
    assert rig.mutations() == []
    name_runtime(rig, "containerd://1.7.2")
    wait_for("the GPUs", lambda: gpu_reasons(rig) == {""})
    rig.prepared(ref)
    assert rig.spec(ref)["cdiVersion"] <= "0.5.0"
    # A group of device nodes needs a newer version of CDI, and so of the runtime.
    parameters = rig.machine.host_root / "proc/driver/nvidia/params"
    parameters.write_text("DeviceFileUID: 0\nDeviceFileGID: 44\nDeviceFileMode: 432\n")
    for node in (rig.machine.host_root / "dev").glob("nvidia*"):
        if not node.is_dir():
            node.unlink()
    wait_for("the GPUs' reason", lambda: gpu_reasons(rig) == {"DriverIncomplete"})
    assert "upgrade containerd to 1.7.16 or newer" in ready(rig)[1]
    name_runtime(rig, "containerd://1.7.16")
    wait_for("the GPUs", lambda: gpu_reasons(rig) == {""})


@pytest.mark.usefixtures("frequent_looks")
def test_sharing_is_offered_while_its_program_is_there(rig: Rig) -> None:
    def is_offered() -> bool:
        return OFFERED[TIME_SLICING] in from_mignode(rig.mignode()).capabilities

    assert is_offered()
    found = rig.machine.host_root / "usr/bin/nvidia-smi"
    aside = found.rename(found.with_name("aside"))
    wait_for("no offer", lambda: not is_offered())
    aside.rename(found)
    wait_for("the offer", is_offered)


@pytest.mark.usefixtures("frequent_looks")
def test_a_claim_that_was_prepared_is_left_alone_and_can_be_unprepared(rig: Rig) -> None:
    ref = rig.claim(SLICE)
    rig.prepared(ref)
    specs = rig.spec(ref), rig.common()
    rig.machine.take_away("libraries")
    wait_for("the GPUs' reason", lambda: gpu_reasons(rig) == {"DriverIncomplete"})
    assert "libcuda" in rig.refused(ref)
    assert verdict(rig, ref) == "", "its place is kept"
    assert (rig.spec(ref), rig.common()) == specs
    assert rig.unprepare(ref) == ""
    assert rig.clean()


@pytest.fixture
def seldom_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is held is not checked by the clock."""
    monkeypatch.setattr(janitor, "CHECK_SECONDS", 3600.0)


@pytest.mark.usefixtures("frequent_looks", "short_patience", "seldom_checks")
def test_a_driver_container_s_restart_brings_the_specs_up_to_date_by_itself(
    make_rig: Callable[..., Rig],
) -> None:
    rig = make_rig()
    container = rig.machine.host_root / "run/nvidia/driver"
    container.mkdir(parents=True)
    (rig.machine.host_root / "usr").rename(container / "usr")
    rig.driver_root = Path("/run/nvidia/driver")
    rig.start()
    ref = rig.claim(SLICE)
    rig.prepared(ref)
    (container / "usr").rename(container / "gone")
    wait_for("the GPUs' reason", lambda: gpu_reasons(rig) == {"DriverIncomplete"})
    (container / "gone/lib/x86_64-linux-gnu").rename(container / "gone/lib64")
    (container / "gone").rename(container / "usr")
    library = f"/run/nvidia/driver/usr/lib64/libcuda.so.{rig.machine.state().driver_version}"
    wait_for("the spec", lambda: library in sources(rig))
    wait_for("the GPUs", lambda: gpu_reasons(rig) == {""})


def sources(rig: Rig) -> set[str]:
    return {mount["hostPath"] for mount in rig.common()["containerEdits"]["mounts"]}


@pytest.mark.usefixtures("frequent_looks", "short_patience", "seldom_checks")
def test_a_hook_that_the_node_gets_is_used_and_shown(rig: Rig) -> None:
    ref = rig.claim(SLICE)
    rig.prepared(ref)
    assert "hooks" not in rig.common()["containerEdits"]
    assert "cdiHook" not in rig.mignode()["status"]
    program(rig.machine.host_root / "sbin/ldconfig")
    hook_program(rig.machine.host_root / "usr/bin/nvidia-cdi-hook", *HOOK_NAMES)
    wait_for(
        "MigNode", lambda: rig.mignode()["status"].get("cdiHook") == "/usr/bin/nvidia-cdi-hook"
    )
    wait_for("the spec", lambda: len(rig.common()["containerEdits"].get("hooks", ())) == 3)
    hold(rig.common())


def container_paths(rig: Rig, device: str) -> set[str]:
    """What a container with this device gets beyond what every one gets."""
    ref = rig.claim(device)
    told = {name.partition("=")[2] for name in rig.prepared(ref)}
    [found] = rig.spec(ref)["devices"]
    shared = [d for d in rig.common()["devices"] if d["name"] in told]
    all_edits = [device["containerEdits"] for device in (found, *shared)]
    nodes = {node["path"] for edits in all_edits for node in edits.get("deviceNodes", ())}
    mounts = {m["containerPath"] for edits in all_edits for m in edits.get("mounts", ())}
    return nodes | mounts


def test_a_slice_gets_the_files_of_what_it_can_do(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(GpuSpec("A100-SXM4-40GB"), GpuSpec(RTX_PRO))
    rig.start()
    decoder, display = "/usr/lib64/libnvcuvid.so.1", "/usr/lib64/libEGL_nvidia.so.0"
    plain = container_paths(rig, "gpu-0-mig-1g5gb-19-4")
    assert decoder not in plain
    assert display not in plain
    video = container_paths(rig, "gpu-0-mig-2g10gb-14-0")
    assert decoder in video
    assert display not in video
    gfx = next(p.id for p in rig.machine.product(1).gi_profiles if p.name == "1g.24gb+gfx")
    graphics = container_paths(rig, f"gpu-1-mig-1g24gb-gfx-{gfx}-0")
    address = rig.machine.gpu(1).pci_bus_id.lower()[4:]
    assert {
        display,
        "/dev/nvidia-modeset",
        "/dev/dri/card1",
        "/dev/dri/renderD129",
        f"/dev/dri/by-path/pci-{address}-render",
    } <= graphics
    assert "/dev/nvidia-modeset" not in plain | video
