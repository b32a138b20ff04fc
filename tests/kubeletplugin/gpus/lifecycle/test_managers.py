"""Other managers of the node's GPUs are noticed and named; MIG mode is theirs or the admin's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from dra.common.resources import NODES
from kubeletplugin.gpus.neighbours.other_managers import conflict
from kubeletplugin.host.options import Options
from kubeletplugin.journal.entries import State
from sim.nvml.faults import Fault
from sim.nvml.machine import GpuSpec
from tests.helpers.waiting import wait_for
from tests.kubeletplugin.helpers import rig as rig_module
from tests.kubeletplugin.helpers.reported import events, reasons, verdict
from tests.kubeletplugin.helpers.rig import A100, Rig

SLICE = "gpu-0-mig-1g5gb-19-4"
H100 = "H100-80GB-HBM3"
CHANGING = {"nvidia.com/mig.config": "all-1g.10gb", "nvidia.com/mig.config.state": "pending"}


def node(labels: dict[str, str], **allocatable: str) -> dict[str, Any]:
    return {"metadata": {"labels": labels}, "status": {"allocatable": allocatable}}


@pytest.mark.parametrize(
    ("labels", "allocatable", "reason"),
    [
        ({}, {"cpu": "8", "nvidia.com/gpu": "0"}, None),
        ({"nvidia.com/mig.config.state": "success"}, {}, None),
        ({**CHANGING, "nvidia.com/mig.config.state": "success"}, {}, None),
        ({"nvidia.com/mig.config.state": "failed"}, {}, None),
        (CHANGING, {}, "MIGManagerActive"),
        ({"nvidia.com/mig.config": "all-disabled"}, {}, "MIGManagerActive"),
        ({}, {"nvidia.com/gpu": "8"}, "DevicePluginActive"),
        ({}, {"nvidia.com/mig-1g.5gb": "7"}, "DevicePluginActive"),
    ],
)
def test_managers_are_recognised_by_labels_and_allocatable(
    labels: dict[str, str], allocatable: dict[str, str], reason: str | None
) -> None:
    found = conflict(node(labels, **allocatable))
    assert (found.reason if found else None) == reason
    assert conflict({}) is None


@pytest.mark.parametrize(
    ("state", "passing", "named"),
    [
        ("pending", True, "is changing this node's GPUs"),
        ("rebooting", True, "is changing this node's GPUs"),
        ("failed", False, "tries no more; see its log"),
    ],
)
def test_a_mig_manager_that_failed_is_not_waited_for(
    state: str,
    passing: bool,  # noqa: FBT001 - a row of the table
    named: str,
) -> None:
    found = conflict(node({**CHANGING, "nvidia.com/mig.config.state": state}))
    assert found is not None
    assert (found.frozen, found.passing) == (True, passing)
    assert named in found.problem


def label(rig: Rig, labels: dict[str, str | None]) -> None:
    rig.api.patch(NODES, rig.node, {"metadata": {"labels": labels}})


def test_while_mig_manager_works_nothing_is_made_or_destroyed(rig: Rig) -> None:
    kept, leaving = rig.claim(SLICE), rig.claim("gpu-1-mig-1g5gb-19-0")
    rig.prepared(kept)
    rig.prepared(leaving)
    label(rig, dict(CHANGING))
    wait_for("MigNode", lambda: reasons(rig) == ["MIGManagerActive"] * 2)
    before = rig.mutations()
    waiting = rig.claim("gpu-0-mig-1g5gb-19-0")
    assert "mig-manager is changing" in rig.refused(waiting)
    assert verdict(rig, waiting) == "", "it ends by itself"
    rig.prepared(kept)
    assert rig.unprepare(leaving) == ""
    assert [e.state for e in rig.journal() if e.claim == leaving] == [State.LEFTOVER]
    assert rig.mutations() == before
    wait_for("the event", lambda: "MIGManagerActive" in dict(events(rig, rig.node)))
    label(rig, {"nvidia.com/mig.config.state": "success"})
    wait_for("MigNode", lambda: reasons(rig) == ["", ""])
    assert rig.daemon is not None
    rig.daemon.claims.janitor.tend(everything=True)
    wait_for("the janitor", lambda: rig.slices() == [(0, "1g.5gb", 4, True)])


def advertise(rig: Rig) -> None:
    rig.api.patch(
        NODES,
        rig.node,
        {"status": {"allocatable": {"nvidia.com/gpu": "2"}}},
        subresource="status",
    )


def test_gpus_that_a_device_plugin_gives_out_are_withheld(rig: Rig) -> None:
    ref, refused = rig.claim(SLICE), rig.claim("gpu-0-mig-1g5gb-19-0")
    rig.prepared(ref)
    advertise(rig)
    wait_for("MigNode", lambda: reasons(rig) == ["DevicePluginActive"] * 2)
    assert "nvidia.com/gpu: 2" in rig.refused(refused)
    assert "nvidia.com/gpu: 2" in verdict(rig, refused), "it lasts until somebody takes it away"
    assert rig.unprepare(ref) == ""
    assert rig.clean(), "what is ours is removed all the same"


def test_a_gpu_that_is_found_later_is_withheld_too(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig()
    advertise(rig)
    rig.machine.inject(
        Fault(id="dead", function="nvmlDeviceGetUUID", action="return", gpu=1, times=0)
    )
    rig.start()
    assert reasons(rig) == ["DevicePluginActive"]
    rig.machine.clear_faults()
    assert rig.daemon is not None
    rig.daemon.gpus.hardware.discover()
    wait_for("MigNode", lambda: reasons(rig) == ["DevicePluginActive"] * 2)


def with_options(monkeypatch: pytest.MonkeyPatch, **changes: Any) -> None:
    monkeypatch.setattr(
        rig_module, "Options", lambda *a, **more: replace(Options(*a, **more), **changes)
    )


def test_an_administrator_may_ignore_other_managers(
    make_rig: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch
) -> None:
    with_options(monkeypatch, ignore_other_managers=True)
    rig = make_rig()
    advertise(rig)
    rig.start()
    rig.prepared(rig.claim(SLICE))
    assert reasons(rig) == ["", ""]


def mode_changes(rig: Rig) -> int:
    return rig.mutations().count("nvmlDeviceSetMigMode")


def test_mig_mode_is_left_alone_unless_asked_for(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(GpuSpec(H100), GpuSpec(A100))
    for gpu in (0, 1):
        rig.machine.set_mig_mode(gpu, enabled=False)
    rig.start()
    assert reasons(rig) == ["MIGDisabled", "MIGDisabled"]
    assert mode_changes(rig) == 0


@pytest.mark.usefixtures("frequent_looks")
def test_mig_mode_is_turned_on_where_that_needs_no_reset(
    make_rig: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch
) -> None:
    with_options(monkeypatch, enable_mig=True)
    rig = make_rig(GpuSpec(H100), GpuSpec(A100))
    for gpu in (0, 1):
        rig.machine.set_mig_mode(gpu, enabled=False)
    rig.start()
    # A GPU that somebody looks at in that moment is left for the next look.
    wait_for("only the H100", lambda: reasons(rig) == ["", "MIGDisabled"])
    assert mode_changes(rig) == 1
    wait_for("the event", lambda: "MIGModeEnabled" in dict(events(rig, rig.node)))
    rig.prepared(rig.claim("gpu-0-mig-1g10gb-19-0"))
    # A reboot turns it off from Hopper on.
    rig.stop()
    rig.machine.reboot()
    rig.start()
    wait_for("MIG mode", lambda: reasons(rig)[0] == "")
    wait_for("the slice", lambda: [s[3] for s in rig.published_slices()] == ["lost"])


@pytest.mark.usefixtures("frequent_looks")
def test_mig_mode_of_a_gpu_in_use_or_with_a_pending_mode_is_not_changed(
    make_rig: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch
) -> None:
    with_options(monkeypatch, enable_mig=True)
    rig = make_rig(GpuSpec(H100), GpuSpec(H100))
    for gpu in (0, 1):
        rig.machine.set_mig_mode(gpu, enabled=False)
    rig.machine.start_process(0, 11)
    with rig.machine.store.change() as state:
        state.gpus[1].mig_pending = True
    rig.start()
    assert reasons(rig) == ["MIGDisabled", "MIGModePending"]
    assert mode_changes(rig) == 0
    rig.machine.end_process(11)
    assert rig.daemon is not None
    wait_for("the mode", lambda: reasons(rig)[0] == "")
