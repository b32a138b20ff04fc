"""Declared layouts: slices kept ready, chosen by labels of the Node, never cut by claims."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from dra.common.resources import NAMESPACES
from dra.gpu.geometry import Placement
from dra.kube.errors import UnavailableError
from kubeletplugin.journal.journal import Journal
from tests.helpers.waiting import wait_for
from tests.kubeletplugin.claims.layouts.declared import (
    A100,
    H100,
    PAIRS,
    gpu_instances,
    label,
    status,
    wait_state,
)
from tests.kubeletplugin.helpers.lostjournals import lose_journal
from tests.kubeletplugin.helpers.rig import Rig

EXAMPLES = Path(__file__).parents[4] / "docs/examples"


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
    inventory = rig.daemon.inventory.known()
    assert inventory is not None
    assert inventory.mode is not None
    assert (inventory.mode.state, inventory.gpus[0].reason) == ("pending", "LayoutPending")
    assert rig.slices() == []
    rig.http.refuse = lambda _, __: None
    wait_for("the layout", lambda: rig.slices() == PAIRS)
