"""Numbers, modes and groups of device nodes."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from cdi.spec import DeviceNode
from dra.gpu.inventory import HOST_USERS_ONLY
from dra.gpu.mignode import from_mignode
from kubeletplugin.host import nodes as devicenodes
from kubeletplugin.host.nodes import (
    drm_nodes,
    gpu_node,
    make_nodes,
    node_edits,
)
from kubeletplugin.host.roots import Roots
from tests.helpers.folders import can_make_nodes
from tests.helpers.waiting import wait_for
from tests.kubeletplugin.helpers.rig import Rig
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


def test_a_node_is_believed_where_the_kernel_names_none(
    host: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (host / "proc/devices").write_text(DEVICES.replace("195 nvidia\n", ""))
    show_nodes(monkeypatch, nvidia0=(0o666, 0, os.makedev(196, 7)))
    assert gpu_node(roots(host), 0) == DeviceNode("/dev/nvidia0", major=196, minor=7)


@pytest.mark.parametrize("mode", [0o660, 0o664, 0o662])
def test_a_node_that_is_not_the_world_s_brings_its_group(
    host: Path, monkeypatch: pytest.MonkeyPatch, mode: int
) -> None:
    show_nodes(monkeypatch, nvidia0=(mode, VIDEO_GROUP, os.makedev(195, 0)))
    edits = node_edits([gpu_node(roots(host), 0)])
    [node] = edits.nodes
    assert (node.file_mode, node.gid, edits.gids) == (mode, VIDEO_GROUP, (VIDEO_GROUP,))


def test_a_node_that_is_not_there_gets_the_group_of_the_driver_s_parameters(host: Path) -> None:
    parameters = host / "proc/driver/nvidia/params"
    parameters.write_text(f"DeviceFileUID: 0\nDeviceFileGID: {VIDEO_GROUP}\nDeviceFileMode: 432\n")
    node = gpu_node(roots(host), 0)
    assert (node.file_mode, node.gid) == (0o660, VIDEO_GROUP)
    parameters.write_text("DeviceFileGID: 44\nDeviceFileMode: 438\n")
    assert gpu_node(roots(host), 0).gid is None
    parameters.write_text("what is this")
    assert gpu_node(roots(host), 0).gid is None


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


def number(path: Path) -> tuple[bool, int, int, int]:
    found = path.stat()
    return (
        stat.S_ISCHR(found.st_mode),
        os.major(found.st_rdev),
        os.minor(found.st_rdev),
        stat.S_IMODE(found.st_mode),
    )


def test_nodes_are_made_on_the_host_as_nvidias_programs_would(tmp_path: Path) -> None:
    if not can_make_nodes(tmp_path):
        pytest.skip("device nodes cannot be made here")
    host = roots(tmp_path)
    nodes = [
        DeviceNode("/dev/nvidia-caps/nvidia-cap30", major=237, minor=30, file_mode=0o444),
        DeviceNode("/dev/nvidia0", "/run/nvidia/driver/dev/nvidia0", major=195, minor=0),
        DeviceNode("/dev/nvidiactl", major=195, minor=255, file_mode=0o660, gid=VIDEO_GROUP),
        DeviceNode("/dev/dri/card0", major=226, minor=0),
    ]
    before = os.umask(0o077)
    try:
        assert make_nodes(host, nodes) == ""
    finally:
        os.umask(before)
    dev = tmp_path / "dev"
    assert number(dev / "nvidia-caps/nvidia-cap30") == (True, 237, 30, 0o444)
    assert number(dev / "nvidia0") == (True, 195, 0, 0o666)
    assert number(dev / "nvidiactl") == (True, 195, 255, 0o660)
    assert (dev / "nvidiactl").stat().st_gid == VIDEO_GROUP
    assert not (dev / "dri").exists(), "the kernel makes those"
    # The module was loaded anew, with another major; what is right is left as it is.
    (dev / "nvidia0").chmod(0o600)
    nodes[0] = DeviceNode(nodes[0].path, major=240, minor=30, file_mode=0o444)
    assert make_nodes(host, nodes) == ""
    assert number(dev / "nvidia-caps/nvidia-cap30") == (True, 240, 30, 0o444)
    assert number(dev / "nvidia0") == (True, 195, 0, 0o600)


def forbid(monkeypatch: pytest.MonkeyPatch) -> None:
    def mknod(path: Path, *_: int) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), str(path))

    monkeypatch.setattr(os, "mknod", mknod)


@pytest.mark.parametrize("made", [True, False])
def test_nvml_opens_although_the_driver_forbids_its_programs_to_make_nodes(
    make_rig: Callable[..., Rig], folder: Path, monkeypatch: pytest.MonkeyPatch, *, made: bool
) -> None:
    if made and not can_make_nodes(folder):
        pytest.skip("device nodes cannot be made here")
    rig = make_rig()
    rig.machine.remove_nodes(makes=False)
    if not made:
        forbid(monkeypatch)
    rig.start(ready=made)
    assert rig.daemon is not None
    readiness = rig.daemon.common.readiness
    if not made:
        text = (
            f"device {rig.machine.host_root}/dev/nvidiactl cannot be made: Operation not permitted"
        )
        wait_for("the reason", lambda: text in readiness.reason)
        assert "DRIVER_NOT_LOADED" in readiness.reason


def test_where_nodes_cannot_be_made_pods_with_the_hosts_users_go_on(
    make_rig: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    forbid(monkeypatch)
    rig = make_rig()
    rig.start()
    assert HOST_USERS_ONLY in from_mignode(rig.mignode()).capabilities
    rig.prepared(rig.claim("gpu-0-mig-1g5gb-19-4"))
    assert "pods with hostUsers: false will not start here" in caplog.text
