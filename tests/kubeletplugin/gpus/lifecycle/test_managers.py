"""Other managers of the node's GPUs are noticed and named; MIG mode is theirs or the admin's."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dra.common.resources import NODES
from dra.kube.reflector import Change, Reflector
from kubeletplugin.gpus.node import conflict
from kubeletplugin.journal.entries import State
from kubeletplugin.options import Options
from tests.helpers.waiting import wait_for
from tests.kubeletplugin.helpers import rig as rig_module
from tests.kubeletplugin.helpers.reported import events, reasons, verdict
from tests.kubeletplugin.helpers.rig import Rig

SLICE = "gpu-0-mig-1g5gb-19-4"
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
    state: str, *, passing: bool, named: str
) -> None:
    found = conflict(node({**CHANGING, "nvidia.com/mig.config.state": state}))
    assert found is not None
    assert (found.frozen, found.passing) == (True, passing)
    assert named in found.problem


OFF = {"nvidia.com/gpu.deploy.mig-manager": "false"}


@pytest.mark.parametrize("state", [None, "pending", "rebooting", "failed", "success"])
@pytest.mark.parametrize("runs", [True, False])
def test_labels_of_a_mig_manager_that_is_switched_off_mean_nothing_once_it_has_ended(
    state: str | None, *, runs: bool
) -> None:
    labels = {**OFF, "nvidia.com/mig.config": "all-disabled"}
    if state is not None:
        labels["nvidia.com/mig.config.state"] = state
    found = conflict(node(labels), runs_mig_manager=lambda: runs)
    assert (found is not None) == (runs and state != "success")
    assert found is None or (found.frozen and found.passing)
    # Where this program makes the layouts, the label and the state are its own.
    ours = conflict(node(labels), makes_layouts=True, runs_mig_manager=lambda: runs)
    assert (ours is not None) == runs


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
    rig.daemon.janitor.tend(everything=True)
    wait_for("the janitor", lambda: rig.slices() == [(0, "1g.5gb", 4, True)])


@pytest.fixture
def operator(rig: Rig) -> Iterator[None]:
    """Labels the node as the GPU operator does: without ``mig.config`` it is ``all-disabled``."""

    def reconcile(change: Change) -> None:
        labels = (change.new or {}).get("metadata", {}).get("labels") or {}
        if change.new is not None and not labels.get("nvidia.com/mig.config"):
            label(rig, {"nvidia.com/mig.config": "all-disabled"})

    reflector = Reflector(
        rig.api, NODES, field_selector=f"metadata.name={rig.node}", on_event=reconcile
    )
    reflector.start()
    yield
    reflector.stop()


def run_mig_manager(rig: Rig, *, capabilities: str = "000001ffffffffff") -> Path:
    process = rig.machine.host_root / "proc/4242"
    process.mkdir()
    (process / "comm").write_text("nvidia-mig-mana\n")
    (process / "status").write_text(f"Uid:\t0\t0\t0\t0\nCapEff:\t{capabilities}\n")
    return process


@pytest.mark.usefixtures("frequent_looks", "operator")
def test_a_node_is_taken_from_mig_manager_although_the_operator_keeps_its_label(rig: Rig) -> None:
    process = run_mig_manager(rig)
    wait_for("the label", lambda: reasons(rig) == ["MIGManagerActive"] * 2)
    label(rig, {"nvidia.com/mig.config.state": "pending"})
    label(rig, dict(OFF))
    waiting = rig.claim(SLICE)
    wait_for("its pod", lambda: "mig-manager is switched off" in rig.refused(waiting))
    assert verdict(rig, waiting) == "", "it ends by itself"
    shutil.rmtree(process)
    wait_for("its end", lambda: reasons(rig) == ["", ""])
    rig.prepared(waiting)
    node = rig.api.get(NODES, rig.node)["metadata"]["labels"]
    assert node["nvidia.com/mig.config.state"] == "pending", "nobody works on it any more"


def test_a_tenants_process_is_not_taken_for_mig_manager(rig: Rig) -> None:
    run_mig_manager(rig, capabilities="00000000a80425fb")
    label(rig, {**OFF, **CHANGING})
    rig.prepared(rig.claim(SLICE))


def advertise(rig: Rig, gpus: str = "2") -> None:
    body = {"status": {"allocatable": {"nvidia.com/gpu": gpus}}}
    rig.api.patch(NODES, rig.node, body, subresource="status")


def test_gpus_that_a_device_plugin_gives_out_are_unavailable(rig: Rig) -> None:
    ref, refused = rig.claim(SLICE), rig.claim("gpu-0-mig-1g5gb-19-0")
    rig.prepared(ref)
    advertise(rig)
    wait_for("MigNode", lambda: reasons(rig) == ["DevicePluginActive"] * 2)
    assert "nvidia.com/gpu: 2" in rig.refused(refused)
    assert "nvidia.com/gpu: 2" in verdict(rig, refused), "it lasts until somebody takes it away"
    assert rig.unprepare(ref) == ""
    assert rig.clean(), "what is ours is removed all the same"


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
