"""Numbers, modes and groups of device nodes."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from cdi.spec import DeviceNode
from kubeletplugin.errors import HostError
from kubeletplugin.host.driver import devicenodes
from kubeletplugin.host.driver.devicenodes import control_nodes, gpu_node, modeset_node, node_edits
from kubeletplugin.host.driver.graphics import drm_nodes
from kubeletplugin.host.roots import Roots
from tests.kubeletplugin.host.layouts import DEVICES, kernel, roots

VIDEO_GROUP = 44
ADDRESS = "0000:07:00.0"


@pytest.fixture
def host(tmp_path: Path) -> Path:
    return kernel(tmp_path / "host")


def show_nodes(monkeypatch: pytest.MonkeyPatch, **modes: tuple[int, int, int]) -> None:
    """Nodes that are there: name to mode, group and device number."""

    def status(_roots: Roots, path: str) -> os.stat_result | None:
        found = modes.get(Path(path).name)
        if found is None:
            return None
        mode, gid, number = found
        values = [stat.S_IFCHR | mode, 1, 1, 1, 0, gid, 0, 0, 0, 0]
        return os.stat_result(values, {"st_rdev": number})

    monkeypatch.setattr(devicenodes, "_status", status)


def test_nodes_have_numbers_although_no_node_exists(host: Path) -> None:
    edits = control_nodes(roots(host))
    assert [(n.path, n.major, n.minor) for n in edits.nodes] == [
        ("/dev/nvidiactl", 195, 255),
        ("/dev/nvidia-uvm", 509, 0),
        ("/dev/nvidia-uvm-tools", 509, 1),
    ]
    assert gpu_node(roots(host), 3) == DeviceNode("/dev/nvidia3", major=195, minor=3)
    assert modeset_node(roots(host)) == DeviceNode("/dev/nvidia-modeset", major=195, minor=254)
    assert edits.gids == ()


def test_a_node_of_an_earlier_load_does_not_count_against_the_kernel(
    host: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    show_nodes(monkeypatch, **{"nvidia-uvm": (0o666, 0, os.makedev(510, 0))})
    (_, uvm, _) = control_nodes(roots(host)).nodes
    assert uvm.major == 509


def test_a_node_is_believed_where_the_kernel_names_none(
    host: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (host / "proc/devices").write_text(DEVICES.replace("195 nvidia\n", ""))
    show_nodes(monkeypatch, nvidia0=(0o666, 0, os.makedev(196, 7)))
    assert gpu_node(roots(host), 0) == DeviceNode("/dev/nvidia0", major=196, minor=7)


def test_the_world_s_nodes_need_no_group(host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    show_nodes(monkeypatch, nvidia0=(0o666, VIDEO_GROUP, os.makedev(195, 0)))
    assert gpu_node(roots(host), 0) == DeviceNode("/dev/nvidia0", major=195, minor=0)


@pytest.mark.parametrize("mode", [0o660, 0o664, 0o662])
def test_a_node_that_is_not_the_world_s_brings_its_group(
    host: Path, monkeypatch: pytest.MonkeyPatch, mode: int
) -> None:
    show_nodes(monkeypatch, nvidia0=(mode, VIDEO_GROUP, os.makedev(195, 0)))
    edits = node_edits([gpu_node(roots(host), 0)])
    [node] = edits.nodes
    assert (node.file_mode, node.gid, edits.gids) == (mode, VIDEO_GROUP, (VIDEO_GROUP,))


def test_root_s_own_nodes_bring_no_group(host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    show_nodes(monkeypatch, nvidia0=(0o660, 0, os.makedev(195, 0)))
    assert node_edits([gpu_node(roots(host), 0)]).gids == ()


def test_a_node_that_is_not_there_gets_the_group_of_the_driver_s_parameters(host: Path) -> None:
    parameters = host / "proc/driver/nvidia/params"
    parameters.write_text(f"DeviceFileUID: 0\nDeviceFileGID: {VIDEO_GROUP}\nDeviceFileMode: 432\n")
    node = gpu_node(roots(host), 0)
    assert (node.file_mode, node.gid) == (0o660, VIDEO_GROUP)
    parameters.write_text("DeviceFileGID: 44\nDeviceFileMode: 438\n")
    assert gpu_node(roots(host), 0).gid is None
    parameters.write_text("what is this")
    assert gpu_node(roots(host), 0).gid is None


def test_a_module_that_is_not_loaded_is_told_with_the_command_although_its_node_is_there(
    host: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (host / "proc/devices").write_text(DEVICES.replace("509 nvidia-uvm\n", ""))
    show_nodes(monkeypatch, **{"nvidia-uvm": (0o666, 0, os.makedev(510, 0))})
    with pytest.raises(HostError, match=r"nvidia-uvm is not loaded .*modprobe nvidia-uvm"):
        control_nodes(roots(host))


def test_a_driver_container_s_nodes_are_named_by_their_path_on_the_host(host: Path) -> None:
    (host / "run/nvidia/driver/dev").mkdir(parents=True)
    node = gpu_node(roots(host, "/run/nvidia/driver"), 0)
    assert node.host_path == "/run/nvidia/driver/dev/nvidia0"
    assert node.path == "/dev/nvidia0"


def test_a_gpu_s_drm_nodes_are_found_by_its_pci_address(
    host: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drm = host / "sys/bus/pci/devices" / ADDRESS / "drm"
    for name, number in (("card1", "226:1"), ("renderD129", "226:129"), ("version", "")):
        (drm / name).mkdir(parents=True)
        (drm / name / "dev").write_text(f"{number}\n")
    show_nodes(monkeypatch, renderD129=(0o660, 107, os.makedev(226, 129)))
    edits = node_edits(drm_nodes(roots(host), ADDRESS))
    assert [(n.path, n.host_path, n.major, n.minor) for n in edits.nodes] == [
        ("/dev/dri/card1", "", 226, 1),
        (f"/dev/dri/by-path/pci-{ADDRESS}-card", "/dev/dri/card1", 226, 1),
        ("/dev/dri/renderD129", "", 226, 129),
        (f"/dev/dri/by-path/pci-{ADDRESS}-render", "/dev/dri/renderD129", 226, 129),
    ]
    assert edits.gids == (107,)
    assert list(drm_nodes(roots(host), "0000:99:00.0")) == []
