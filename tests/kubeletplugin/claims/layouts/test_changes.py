"""Layouts that change: who is waited for, and what is said of labels that cannot be."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from dra.claims.allocation import label_of, node_label
from dra.common.resources import MIG_NODES, NODES, RESOURCE_CLAIMS
from dra.gpu.inventory import AllocatorKind
from dra.kube.client import KubeApi
from dra.kube.errors import ForbiddenError, KubeError
from dra.kube.http import Page
from kubeletplugin import times
from kubeletplugin.claims.allocated_elsewhere import AllocatedElsewhere
from kubeletplugin.claims.lookup import ClaimReader
from tests.dra.kube.clocks import FakeClock
from tests.helpers.waiting import wait_for
from tests.kubeletplugin.claims.layouts.declared import A100, H100, PAIRS, label, status, wait_state
from tests.kubeletplugin.helpers.rig import DRIVER, Rig


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


@pytest.mark.parametrize("allocator", AllocatorKind)
def test_waiting_for_claims_costs_no_list_of_them_and_no_gpu_its_lock(
    declare: Callable[..., Rig], allocator: AllocatorKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = declare(A100, A100, start=False)
    rig.allocator = allocator
    rig.start()
    assert rig.daemon is not None
    labelled, unlabelled, other = refs = [
        rig.claim(d)
        for d in ("gpu-0-mig-1g5gb-19-3", "gpu-1-mig-1g5gb-19-3", "gpu-1-mig-1g5gb-19-2")
    ]
    named = {"metadata": {"labels": {node_label(DRIVER): label_of(rig.node)}}}
    rig.api.patch(RESOURCE_CLAIMS, labelled.name, named, namespace=labelled.namespace)
    units, loop = rig.daemon.hardware.units(), rig.daemon.loop
    asked: list[str] = []
    locked: list[str] = []

    def note(_: str, path: str) -> None:
        if threading.current_thread().name == "hardware" and "resourceclaims" in path:
            asked.append(path.partition("resourceclaims")[2])
            locked.extend(u.name for u in units if u.lock.is_held)

    lists: list[str] = []
    page = rig.http.page

    def listed(path: str, **more: Any) -> Page:
        query = more["query"]
        if threading.current_thread().name == "hardware" and not query.get("continue"):
            lists.append(query["labelSelector"])
        found = page(path, **more)
        if len(lists) == 1:  # between the two lists
            rig.api.patch(RESOURCE_CLAIMS, other.name, named, namespace=other.namespace)
        return found

    monkeypatch.setattr(rig.http, "page", listed)
    rig.http.refuse = note
    label(rig, config="pairs")
    wait_state(rig, "pending", *(f"claim {ref} (" for ref in refs))

    def many() -> bool:
        loop.hurry()
        return len(asked) > 20

    wait_for("many looks", many)
    key = node_label(DRIVER)
    assert lists == [f"!{key}", f"{key}={rig.node}"]
    assert {f"/{ref.name}" for ref in refs} == set(asked) - {""}
    for ref in (other, labelled, unlabelled):
        rig.delete_claim(ref)
    wait_state(rig, "success")
    assert rig.slices() == [*PAIRS, *((1, *pair[1:]) for pair in PAIRS)]
    assert (len(lists), locked) == (2, [])


def test_claims_that_cannot_be_listed_are_asked_for_ever_less_often(
    make_rig: Callable[..., Rig],
) -> None:
    rig, clock = make_rig(), FakeClock()
    reader = ClaimReader(KubeApi(rig.http), driver=DRIVER, pool=rig.node)
    elsewhere = AllocatedElsewhere(reader, clock=clock)
    lists: list[float] = []

    def refuse(_method: str, _path: str) -> KubeError:
        lists.append(clock.monotonic())
        return ForbiddenError("no lists for you")

    rig.http.refuse = refuse
    for _ in range(60):  # ten minutes
        elsewhere.look(0.0)
        clock.sleep(10.0)
    assert 3 < len(lists) < 10


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
        assert status(rig)["gpus"][0]["reason"] == "LayoutFailed"
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
    rig.daemon.loop.hurry()
    wait_for("the layout", lambda: rig.slices() == PAIRS)


def test_none_keeps_a_gpu_from_being_released(declare: Callable[..., Rig]) -> None:
    rig = declare(config="pairs")
    rig.api.patch(MIG_NODES, rig.node, {"spec": {"drain": {"since": "2026-01-01T00:00:00Z"}}})
    assert rig.daemon is not None
    wait_for("its end", lambda: (rig.daemon.loop.hurry(), rig.clean())[1])  # type: ignore[union-attr]
    wait_for("the release", lambda: status(rig)["gpus"][0].get("reason") == "GpuReleased")
    rig.api.patch(MIG_NODES, rig.node, {"spec": {"drain": None}})
    wait_for("the layout", lambda: (rig.daemon.loop.hurry(), rig.slices())[1] == PAIRS)  # type: ignore[union-attr]


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


def test_a_change_of_mode_is_tried_again_while_a_monitor_holds_the_gpu(
    declare: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(times, "MODE_FIRST_SECONDS", 0.0)
    rig = declare(H100, start=False, mode="whole")

    def is_now(*, pending: bool, mode: bool) -> bool:
        assert rig.daemon is not None
        rig.daemon.loop.hurry()
        gpu = rig.machine.gpu(0)
        return (gpu.mig_pending, gpu.mig) == (pending, mode)

    rig.machine.start_monitor(0, 4711)
    rig.start()
    wait_for("a try", lambda: is_now(pending=False, mode=True))
    rig.machine.end_monitor(4711)
    wait_for("off", lambda: is_now(pending=False, mode=False))
    rig.machine.start_monitor(0, 4711)
    label(rig, mode="on-demand")
    wait_for("a try", lambda: is_now(pending=True, mode=False))
    rig.machine.end_monitor(4711)
    wait_for("on", lambda: is_now(pending=True, mode=True))


def test_before_hopper_the_mode_is_left_and_the_remedy_said(declare: Callable[..., Rig]) -> None:
    rig = declare(config="all-disabled")
    text = wait_state(rig, "pending", "MIG mode of gpu-0 is on", "nvidia-smi -i", "-mig 0")
    assert text.endswith(f"--wait and kubectl mig resume {rig.node} gpu-0")
    assert rig.machine.state().gpus[0].mig
    assert status(rig)["gpus"][0]["reason"] == "LayoutPending"


def test_a_second_mig_manager_is_a_conflict(declare: Callable[..., Rig]) -> None:
    rig = declare(start=False, config="pairs")
    key = "nvidia.com/gpu.deploy.mig-manager"
    rig.api.patch(NODES, rig.node, {"metadata": {"labels": {key: "true"}}})
    rig.start()
    wait_for("the conflict", lambda: status(rig)["gpus"][0].get("reason") == "MIGManagerActive")
    assert rig.slices() == []
