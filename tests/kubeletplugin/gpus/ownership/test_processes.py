"""Processes that NVML does not name, because the plugin is in a pid namespace of its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kubeletplugin.host.processes import sees_processes
from kubeletplugin.host.roots import Roots
from sim.nvml.machine import GpuSpec
from sim.nvml.products import OTHERS, Variants
from tests.helpers.waiting import wait_for
from tests.kubeletplugin.gpus.lifecycle.test_managers import with_options
from tests.kubeletplugin.gpus.lifecycle.test_migmode import H100, mode_changes
from tests.kubeletplugin.helpers.reported import events, reasons
from tests.kubeletplugin.helpers.rig import Rig

SLICE = "gpu-0-mig-1g5gb-19-4"
HIDDEN = OTHERS["processes-hidden"]


def roots(host: Path) -> Roots:
    nowhere = Path("/nowhere")
    return Roots(host=host, driver=Path("/"), cdi=nowhere, kubelet=nowhere, state=nowhere)


def first_process(host: Path, namespace: str) -> None:
    (host / "proc/1/ns").mkdir(parents=True)
    (host / "proc/1/ns/pid").symlink_to(namespace)


def test_processes_are_seen_from_the_namespace_of_the_nodes_first_process(tmp_path: Path) -> None:
    first_process(tmp_path / "same", str(Path("/proc/self/ns/pid").readlink()))
    assert sees_processes(roots(tmp_path / "same"))
    first_process(tmp_path / "other", "pid:[4026539999]")
    assert not sees_processes(roots(tmp_path / "other"))


@pytest.mark.parametrize(
    ("own", "seen"), [("pid:[4026531836]", True), ("pid:[4026539999]", False), ("", False)]
)
def test_where_the_nodes_is_not_shown_only_the_kernels_first_one_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: str, *, seen: bool
) -> None:
    link = tmp_path / "own"
    if own:
        link.symlink_to(own)
    monkeypatch.setattr("kubeletplugin.host.processes._OWN_NAMESPACE", link)
    assert sees_processes(roots(tmp_path)) is seen


def hidden(make_rig: Callable[..., Rig], *gpus: GpuSpec) -> Rig:
    rig = make_rig(*gpus)
    rig.machine.configure(variants=HIDDEN)
    return rig


@pytest.mark.usefixtures("frequent_looks")
def test_without_the_hosts_pid_namespace_no_mode_is_changed(
    make_rig: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch
) -> None:
    with_options(monkeypatch, enable_mig=True)
    rig = hidden(make_rig, GpuSpec(H100, mig=False))
    rig.machine.start_process(0, 11)
    rig.start()
    wait_for("the event", lambda: "MIGModeLeftOff" in dict(events(rig, rig.node)))
    assert "hostPID" in dict(events(rig, rig.node))["MIGModeLeftOff"]
    assert reasons(rig) == ["MIGDisabled"]
    assert mode_changes(rig) == 0


@pytest.mark.usefixtures("short_patience")
def test_processes_that_cannot_be_named_are_said_to_be_so(make_rig: Callable[..., Rig]) -> None:
    rig = hidden(make_rig)
    rig.start()
    ref = rig.claim(SLICE)
    rig.prepared(ref)
    [instance] = rig.machine.gpu(0).gpu_instances
    [compute] = instance.compute_instances
    rig.machine.start_process(0, 4711, gpu_instance=instance.id, compute_instance=compute.id)
    assert rig.unprepare(ref) == ""
    wait_for("the event", lambda: "SliceInUse" in dict(events(rig, ref.name)))
    text = dict(events(rig, ref.name))["SliceInUse"]
    assert "cannot be named" in text
    assert "hostPID" in text
    assert rig.slices() == [(0, "1g.5gb", 4, True)], "what is in use is not destroyed"


@pytest.mark.usefixtures("short_patience")
def test_where_nvml_names_nobody_those_who_have_the_gpu_open_are_named(rig: Rig) -> None:
    """A monitor such as DCGM: no process in the slice, and the destroy is refused."""
    proc = rig.machine.host_root / "proc"
    for pid, name, node in ((4242, "nv-hostengine", "nvidia0"), (4243, "other", "nvidia1")):
        (proc / f"{pid}/fd").mkdir(parents=True)
        (proc / f"{pid}/comm").write_text(f"{name}\n")
        (proc / f"{pid}/fd/7").symlink_to(f"/dev/{node}")
    rig.machine.configure(variants=Variants(instance_lingers=1_000_000))
    ref = rig.claim(SLICE)
    rig.prepared(ref)
    assert rig.unprepare(ref) == ""
    wait_for("the event", lambda: "SliceInUse" in dict(events(rig, ref.name)))
    text = dict(events(rig, ref.name))["SliceInUse"]
    assert "its GPU is open in nv-hostengine (4242)" in text
    assert "other" not in text
