"""Declared layouts: slices kept ready, chosen by labels of the Node, never cut by claims."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from dra.common.resources import MIG_NODES, NAMESPACES, NODES, Obj
from dra.gpu.geometry import Placement
from dra.kube.errors import UnavailableError
from kubeletplugin.claims.recovery import layouts
from kubeletplugin.journal.journal import Journal
from sim.nvml.machine import GpuSpec
from tests.kubeletplugin.rig import Rig
from tests.kubeletplugin.test_rebuild import lose_journal
from tests.waiting import wait_for

EXAMPLES = Path(__file__).parents[2] / "docs/examples"
A100, H100 = "A100-SXM4-40GB", "H100-80GB-HBM3"
FILE = """
version: v1
mig-configs:
  all-disabled:
    - devices: all
      mig-enabled: false
  pairs:
    - devices: all
      mig-enabled: true
      mig-devices: {"3g.20gb": 2}
  mixed:
    - device-filter: ["0x20B010DE", "0x20B110DE"]
      devices: [0]
      mig-enabled: true
      mig-devices: {"1g.5gb": 2, "2g.10gb": 1, "3g.20gb": 1}
  too-much:
    - devices: all
      mig-enabled: true
      mig-devices: {"3g.20gb": 3}
"""
CLASS = """
apiVersion: mig.dra.dev/v1alpha1
kind: MigNodeClass
migMode: switch
"""
PAIRS = [(0, "3g.20gb", 0, False), (0, "3g.20gb", 4, False)]
MIXED = [
    (0, "1g.5gb", 2, False),
    (0, "1g.5gb", 3, False),
    (0, "2g.10gb", 0, False),
    (0, "3g.20gb", 4, False),
]


@pytest.fixture
def declare(
    make_rig: Callable[..., Rig],
    folder: Path,
    short_patience: None,
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[..., Rig]:
    """Builds a node that has the files above, with labels; the plugin is started."""
    monkeypatch.setattr(layouts, "GRACE_SECONDS", 0.0)

    def declare(*gpus: str, start: bool = True, **labels: str) -> Rig:
        rig = make_rig(*(GpuSpec(g) for g in gpus or (A100,)))
        rig.node_classes = folder / "classes"
        rig.node_classes.mkdir()
        (rig.node_classes / "default.yaml").write_text(CLASS)
        (rig.node_classes / "config.yaml").write_text(FILE)
        label(rig, **labels)
        if start:
            rig.start()
        return rig

    return declare


def label(rig: Rig, **labels: str | None) -> None:
    """Set labels of the Node: ``config`` is mig-manager's, others are ours."""
    keys = {"config": "nvidia.com/mig.config"}
    found = {keys.get(k, f"mig.dra.dev/{k.replace('_', '-')}"): v for k, v in labels.items()}
    rig.api.patch(NODES, rig.node, {"metadata": {"labels": found}})


def gpu_instances(rig: Rig) -> list[str]:
    """Calls that made or destroyed one."""
    return [c for c in rig.mutations() if "CreateGpuInstance" in c or "GpuInstanceDestroy" in c]


def status(rig: Rig) -> Obj:
    found: Obj = rig.mignode()["status"]
    return found


def wait_state(rig: Rig, state: str, *texts: str) -> str:
    """Wait for the state of the node's mode; its message, which has the texts."""

    def there() -> bool:
        assert rig.daemon is not None
        mode = status(rig).get("mode") or {}
        rig.daemon.gpus.loop.hurry()
        return mode.get("state") == state and all(t in mode.get("message", "") for t in texts)

    wait_for(f"state {state} {texts}", there)
    return str(status(rig)["mode"].get("message", ""))


def test_a_layout_is_made_at_start_and_claims_get_a_new_compute_instance_in_it(
    declare: Callable[..., Rig],
) -> None:
    rig = declare(config="pairs")
    assert rig.slices() == PAIRS
    [gpu] = status(rig)["gpus"]
    ready = [{"start": 0, "size": 4}, {"start": 4, "size": 4}]
    assert gpu["layout"] == {"name": "pairs", "ready": ready}
    assert "instances" not in gpu, "they take no room from claims"
    assert status(rig)["mode"] == {"mode": "layout", "layout": "pairs", "state": "success"}
    [geometry] = status(rig)["geometries"]
    starts = {p["name"]: p["starts"] for p in geometry["profiles"] if p["starts"]}
    assert starts == {"3g.20gb": [0, 4]}
    made = gpu_instances(rig)
    rig.api.create(NAMESPACES, {"metadata": {"name": "other-team"}})
    uuids = set()
    for namespace in ("default", "other-team"):
        ref = rig.claim("gpu-0-mig-3g20gb-9-4", namespace=namespace)
        rig.prepared(ref)
        uuids |= {e.mig_uuid for e in rig.journal() if e.mig_uuid}
        assert [s for s in rig.slices() if s[3]] == [(0, "3g.20gb", 4, True)]
        assert not rig.unprepare(ref)
        assert rig.slices() == PAIRS
    assert len(uuids) == 2
    before = rig.mutations()
    for device in ("gpu-0-mig-1g5gb-19-0", "gpu-0-mig-7g40gb-0-0", "gpu-0"):
        rig.refused(rig.claim(device))
    assert "layout is pairs" in rig.refused(rig.claim("gpu-0-mig-3g20gb-9-2"))
    assert rig.mutations() == before
    assert gpu_instances(rig) == made


def test_gpus_with_a_layout_and_on_demand_stand_side_by_side(declare: Callable[..., Rig]) -> None:
    rig = declare(A100, A100, config="mixed")
    assert rig.slices() == MIXED
    ref = rig.claim("gpu-1-mig-2g10gb-14-4")
    rig.prepared(ref)
    assert (1, "2g.10gb", 4, True) in rig.slices()
    rig.unprepare(ref)
    assert rig.slices() == MIXED


def test_the_examples_of_the_handbook_become_what_they_say(declare: Callable[..., Rig]) -> None:
    rig = declare(A100, H100, start=False)
    assert rig.node_classes is not None
    for name, file in (("default", "layouts-class"), ("config", "layouts-mig-parted")):
        text = (EXAMPLES / f"{file}.yaml").read_text()
        (rig.node_classes / f"{name}.yaml").write_text(text)
    label(rig, config="all-balanced")
    rig.start()
    assert [s[:2] for s in rig.slices()] == [
        *[(0, "1g.5gb")] * 2,
        *[(0, "2g.10gb"), (0, "3g.20gb")],
        *[(1, "1g.10gb")] * 2,
        *[(1, "2g.20gb"), (1, "3g.40gb")],
    ]
    label(rig, config="first-only")
    wait_for("the layout", lambda: rig.slices() == PAIRS)
    label(rig, config=None, mode=None)
    text = wait_state(rig, "failed", "gpu-1 (NVIDIA H100 80GB HBM3) cannot have the layout")
    assert "'halves': it has no profile 3g.20gb; it has: " in text
    assert rig.slices() == PAIRS, "which is what the class says"


def test_they_outlive_the_program(declare: Callable[..., Rig]) -> None:
    rig = declare(config="mixed")
    before = gpu_instances(rig)
    held = rig.claim("gpu-0-mig-2g10gb-14-0")
    rig.prepared(held)
    rig.restart()
    rig.unprepare(held)
    assert rig.slices() == MIXED
    assert gpu_instances(rig) == before
    rig.stop()
    rig.machine.reboot()
    assert rig.slices() == []
    rig.start()
    assert rig.slices() == MIXED


def test_after_a_lost_journal_they_are_ready_again(declare: Callable[..., Rig]) -> None:
    rig = declare(config="mixed")
    before = gpu_instances(rig)
    held = rig.claim("gpu-0-mig-2g10gb-14-0", expected=True)
    rig.prepared(held)
    [third] = [e.gi_id for e in rig.journal() if e.ready and e.placement == Placement(2, 1)]
    assert third is not None
    rig.stop()
    lose_journal(rig)
    rig.machine.destroy_slice(0, third)
    other = rig.machine.create_slice(0, "1g.5gb", start=2)
    rig.start()
    text = wait_state(rig, "pending", "at 2:1, which this plugin did not make")
    assert "at 3:1" not in text, "nobody uses it: it was ready"
    rig.machine.destroy_slice(0, other.gpu_instance)
    wait_state(rig, "success")
    assert [s for s in rig.slices() if s[3]] == [(0, "2g.10gb", 0, True)]
    assert len(gpu_instances(rig)) == len(before) + 1
    ready = [e for e in rig.journal() if e.ready]
    assert sorted(e.placement.start for e in ready if e.placement) == [2, 3, 4]
    assert not Journal(rig.roots.state / "journal.json").unadopted
    label(rig, config=None)
    wait_for("their end", lambda: rig.slices() == [(0, "2g.10gb", 0, True)])


def test_a_run_that_ends_before_it_knew_its_layout_leaves_that_to_the_next(
    declare: Callable[..., Rig],
) -> None:
    rig = declare(config="pairs")
    before = gpu_instances(rig)
    rig.stop()
    lose_journal(rig)
    nobody = UnavailableError("no answer")
    rig.http.refuse = lambda _, path: nobody if "/nodes" in path else None
    rig.start(ready=False)
    wait_for("readiness", lambda: rig.is_ready)
    rig.stop()
    left = Journal(rig.roots.state / "journal.json")
    assert (left.rebuild, left.unadopted, left.entries()) == (False, True, ())
    rig.http.refuse = lambda _, __: None
    rig.start()
    assert sum(e.ready for e in rig.journal()) == 2
    assert gpu_instances(rig) == before


def test_a_bare_instance_of_others_is_not_adopted_where_no_journal_was_lost(
    declare: Callable[..., Rig],
) -> None:
    rig = declare()
    rig.machine.create_slice(0, "3g.20gb", start=4, compute=False)
    label(rig, config="pairs")
    wait_state(rig, "pending", "at 4:4, which this plugin did not make")
    assert rig.journal() == ()


def test_one_that_was_taken_before_kubelet_asked_is_given_back(declare: Callable[..., Rig]) -> None:
    rig = declare(config="pairs")
    before = gpu_instances(rig)
    ref = rig.claim("gpu-0-mig-3g20gb-9-0", expected=True)
    wait_for("the slice", lambda: rig.slices() == [(0, "3g.20gb", 0, True), PAIRS[1]])
    rig.set_status(ref, allocation=None, reservedFor=None)
    wait_for("its end", lambda: rig.slices() == PAIRS)
    assert gpu_instances(rig) == before


def test_while_the_node_cannot_be_read_nothing_is_given_out(declare: Callable[..., Rig]) -> None:
    rig = declare(config="pairs", start=False)
    nobody = UnavailableError("no answer")
    rig.http.refuse = lambda _, path: nobody if "/nodes" in path else None
    rig.start(ready=False)
    wait_for("readiness", lambda: rig.is_ready)
    assert rig.daemon is not None
    inventory = rig.daemon.publishing.inventory.known()
    assert inventory is not None
    assert inventory.mode is not None
    assert (inventory.mode.state, inventory.gpus[0].reason) == ("pending", "LayoutPending")
    assert rig.slices() == []
    rig.http.refuse = lambda _, __: None
    wait_for("the layout", lambda: rig.slices() == PAIRS)


def test_a_change_waits_for_who_holds_what_has_to_go(declare: Callable[..., Rig]) -> None:
    rig = declare(config="mixed")
    stays, goes = rig.claim("gpu-0-mig-3g20gb-9-4"), rig.claim("gpu-0-mig-1g5gb-19-2")
    for ref in (stays, goes):
        rig.prepared(ref)
    label(rig, config="pairs")
    text = wait_state(rig, "pending", f"claim {goes} (1g.5gb at 2:1)")
    assert str(stays) not in text
    [gpu] = status(rig)["gpus"]
    assert gpu["reason"] == "LayoutPending"
    assert gpu["message"] == text
    assert len(rig.slices()) == 4
    rig.unprepare(goes)
    rig.delete_claim(goes)
    wait_state(rig, "success")
    assert rig.slices() == [PAIRS[0], (0, "3g.20gb", 4, True)]
    rig.unprepare(stays)
    assert rig.slices() == PAIRS


def test_a_change_waits_for_claims_that_are_only_allocated(declare: Callable[..., Rig]) -> None:
    rig = declare()
    ref = rig.claim("gpu-0-mig-1g5gb-19-3")
    label(rig, config="pairs")
    wait_state(rig, "pending", f"claim {ref} (gpu-0-mig-1g5gb-19-3)")
    rig.prepared(ref)
    rig.unprepare(ref)
    rig.delete_claim(ref)
    wait_state(rig, "success")
    assert rig.slices() == PAIRS


def test_without_the_label_slices_are_cut_again(declare: Callable[..., Rig]) -> None:
    rig = declare(config="pairs")
    held = rig.claim("gpu-0-mig-3g20gb-9-0")
    rig.prepared(held)
    label(rig, config=None)
    wait_for("the ready slice's end", lambda: rig.slices() == [(0, "3g.20gb", 0, True)])
    rig.prepared(rig.claim("gpu-0-mig-1g5gb-19-4"))
    rig.unprepare(held)
    assert rig.slices() == [(0, "1g.5gb", 4, True)]


def test_an_instance_of_others_is_waited_for_and_never_removed(declare: Callable[..., Rig]) -> None:
    rig = declare(start=False, config="pairs")
    foreign = rig.machine.create_slice(0, "1g.5gb", start=5)
    rig.start()
    text = wait_state(rig, "pending", "which this plugin did not make", "nvidia-smi mig -i")
    assert "at 5:1" in text
    assert rig.slices() == [(0, "1g.5gb", 5, True)]
    rig.machine.destroy_slice(0, foreign.gpu_instance)
    wait_state(rig, "success")
    assert rig.slices() == PAIRS


WRONG: list[tuple[dict[str, str], tuple[str, ...]]] = [
    ({"config": "too-much"}, ("gpu-0", "3 x 3g.20gb do not fit on it together")),
    ({"config": "nothing"}, ("no layout 'nothing'; there are: all-disabled, mixed, pairs",)),
    ({"mode": "layout"}, ("no layout is named", "nvidia.com/mig.config")),
    ({"mode": "fast"}, ("'fast' is not allowed; allowed are: on-demand, layout, whole",)),
    ({"node_class": "x"}, ("there is no class 'x' of nodes; there are: default",)),
]


def test_what_cannot_be_is_said_and_nothing_is_given_out(declare: Callable[..., Rig]) -> None:
    rig = declare()
    for labels, texts in WRONG:
        label(rig, **labels)
        wait_state(rig, "failed", *texts)
        assert status(rig)["gpus"][0]["reason"] == "LayoutPending"
        assert rig.slices() == []
        label(rig, **dict.fromkeys(labels))
        wait_state(rig, "success")


def test_what_was_made_stays_while_the_label_is_wrong_and_is_made_again_after_a_reset(
    declare: Callable[..., Rig],
) -> None:
    rig = declare(config="pairs")
    label(rig, config="nothing")
    wait_state(rig, "failed", "no layout 'nothing'")
    assert rig.slices() == PAIRS
    assert "reason" not in status(rig)["gpus"][0]
    label(rig, config="pairs")
    wait_state(rig, "success")
    rig.machine.wipe_gpu(0)
    assert rig.slices() == []
    assert rig.daemon is not None
    rig.daemon.gpus.loop.hurry()
    wait_for("the layout", lambda: rig.slices() == PAIRS)


def test_none_keeps_a_gpu_from_being_let_go_of(declare: Callable[..., Rig]) -> None:
    rig = declare(config="pairs")
    rig.api.patch(MIG_NODES, rig.node, {"spec": {"drain": {"since": "2026-01-01T00:00:00Z"}}})
    assert rig.daemon is not None
    wait_for("its end", lambda: (rig.daemon.gpus.loop.hurry(), rig.clean())[1])  # type: ignore[union-attr]
    wait_for("the release", lambda: status(rig)["gpus"][0].get("reason") == "GpuLetGo")
    rig.api.patch(MIG_NODES, rig.node, {"spec": {"drain": None}})
    wait_for("the layout", lambda: (rig.daemon.gpus.loop.hurry(), rig.slices())[1] == PAIRS)  # type: ignore[union-attr]


def test_a_node_is_switched_between_whole_and_cut_when_idle(declare: Callable[..., Rig]) -> None:
    rig = declare(H100, mode="on-demand")
    held = rig.claim("gpu-0-mig-1g10gb-19-0")
    rig.prepared(held)
    label(rig, mode="whole")
    wait_state(rig, "pending", f"claim {held}")
    assert rig.machine.state().gpus[0].mig
    rig.unprepare(held)
    rig.delete_claim(held)
    wait_state(rig, "success")
    assert not rig.machine.state().gpus[0].mig
    whole, only_allocated = rig.claim("gpu-0"), rig.claim("gpu-0")
    rig.prepared(whole)
    label(rig, mode="on-demand")
    wait_state(rig, "pending", f"claim {whole} (all of it)")
    assert "MIG mode" in rig.refused(rig.claim("gpu-0-mig-1g10gb-19-0", name="slice"))
    rig.unprepare(whole)
    rig.delete_claim(whole)
    wait_state(rig, "pending", f"claim {only_allocated} (gpu-0)")
    assert not rig.machine.state().gpus[0].mig, "it is given whole"
    rig.delete_claim(only_allocated)
    wait_state(rig, "success")
    assert rig.machine.state().gpus[0].mig


def test_before_hopper_the_mode_is_left_and_the_remedy_said(declare: Callable[..., Rig]) -> None:
    rig = declare(config="all-disabled")
    wait_state(rig, "pending", "MIG mode of gpu-0 is on", "nvidia-smi -i", "-mig 0")
    assert rig.machine.state().gpus[0].mig
    assert status(rig)["gpus"][0]["reason"] == "LayoutPending"


def test_a_second_mig_manager_is_a_conflict(declare: Callable[..., Rig]) -> None:
    rig = declare(start=False, config="pairs")
    key = "nvidia.com/gpu.deploy.mig-manager"
    rig.api.patch(NODES, rig.node, {"metadata": {"labels": {key: "true"}}})
    rig.start()
    wait_for("the conflict", lambda: status(rig)["gpus"][0].get("reason") == "MIGManagerActive")
    assert rig.slices() == []
