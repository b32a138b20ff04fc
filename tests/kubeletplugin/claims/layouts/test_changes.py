"""Layouts that change: who is waited for, and what is said of labels that cannot be."""

from __future__ import annotations

from collections.abc import Callable

from dra.common.resources import MIG_NODES, NODES
from tests.helpers.waiting import wait_for
from tests.kubeletplugin.claims.layouts.declared import H100, PAIRS, label, status, wait_state
from tests.kubeletplugin.helpers.rig import Rig


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


def test_a_mode_that_is_wanted_back_at_once_is_given_back(declare: Callable[..., Rig]) -> None:
    rig = declare(H100, mode="on-demand")

    def is_on() -> bool:
        return rig.machine.state().gpus[0].mig

    label(rig, mode="whole")
    wait_for("off", lambda: not is_on())
    label(rig, mode="on-demand")
    wait_for("on", is_on)


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
