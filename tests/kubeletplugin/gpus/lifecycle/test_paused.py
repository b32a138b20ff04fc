"""A node that is to pause by the labels of driver-manager and MIG manager."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kubeletplugin.gpus.node import pause_of
from sim.nvml.machine import GpuSpec
from tests.helpers.waiting import wait_for
from tests.kubeletplugin.claims.sharing.test_views import view
from tests.kubeletplugin.gpus.lifecycle.test_managers import label
from tests.kubeletplugin.helpers.releasing import (
    FIRST,
    RELEASED,
    SECOND,
    drain,
    held,
    message,
    wait_released,
)
from tests.kubeletplugin.helpers.reported import events, reasons, verdict
from tests.kubeletplugin.helpers.rig import A100, Rig

CLIENT = "nvidia.com/gpu.deploy.client"


UPGRADE = "paused-for-driver-upgrade"


PAUSE_LABELS = ("nvidia.com/gpu.deploy.*",)


@pytest.mark.parametrize(
    ("labels", "found"),
    [
        ({}, ""),
        ({CLIENT: "true"}, ""),
        ({CLIENT: "false"}, ""),
        ({CLIENT: UPGRADE}, f"{CLIENT}={UPGRADE}"),
        ({CLIENT: "paused-for-mig-change"}, f"{CLIENT}=paused-for-mig-change"),
        ({CLIENT: f"gpu_{UPGRADE}"}, f"{CLIENT}=gpu_{UPGRADE}"),
        ({CLIENT: "unpaused-for-ever"}, ""),
        ({"nvidia.com/gpu.deploy.dcgm": UPGRADE}, f"nvidia.com/gpu.deploy.dcgm={UPGRADE}"),
        ({"example.com/clients": UPGRADE}, ""),
    ],
)
def test_a_pause_is_recognised_by_the_value_of_a_label(labels: dict[str, str], found: str) -> None:
    pause = pause_of({"metadata": {"labels": labels}}, PAUSE_LABELS)
    assert (pause.label if pause else "") == found
    assert pause_of({}, PAUSE_LABELS) is None


@pytest.mark.every_variant
def test_a_paused_node_prepares_nothing_new_and_is_released_once_it_is_empty(rig: Rig) -> None:
    ref, late = rig.claim(FIRST), rig.claim(SECOND)
    rig.prepared(ref)
    label(rig, {CLIENT: UPGRADE})
    wait_for("the MigNode", lambda: reasons(rig) == ["GpuClientsPaused", RELEASED])
    assert CLIENT in rig.refused(late)
    assert verdict(rig, late) == "", "it ends by itself"
    also = rig.claim("gpu-0-mig-1g5gb-19-0")
    assert f"{CLIENT}={UPGRADE}" in rig.refused(also)
    assert verdict(rig, also) == ""
    assert rig.prepared(ref), "kubelet asks again when a container restarts"
    assert rig.unprepare(ref) == ""
    wait_released(rig, 0, 1)
    assert held(rig) == []
    assert f"back in service when {CLIENT} is true again or gone" in message(rig)
    rig.machine.reload_driver()
    wait_for("the event", lambda: "GpuClientsPaused" in dict(events(rig, rig.node)))
    label(rig, {CLIENT: "true"})
    wait_released(rig)
    assert rig.prepared(late)


def test_a_view_of_a_gpu_is_refused_too_as_its_holder_would_keep_it_open(
    make_rig: Callable[..., Rig],
) -> None:
    rig = make_rig(GpuSpec(A100))
    rig.start()
    drain(rig)
    wait_released(rig, 0)
    ref = view(rig, "gpu-0")
    assert "released" in rig.refused(ref)
    assert rig.journal() == ()
