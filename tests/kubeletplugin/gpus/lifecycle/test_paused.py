"""A node that is to pause by the labels of driver-manager and MIG manager."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dra.gpu.inventory import Drain
from kubeletplugin.gpus.gpu import GpuUnit
from kubeletplugin.gpus.node import Pause, pause_of
from kubeletplugin.gpus.releasing import ReleaseRequest
from kubeletplugin.nvml.gpus import Card
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


def test_the_keys_of_a_pause_can_be_chosen() -> None:
    node = {"metadata": {"labels": {"example.com/clients": f"x_{UPGRADE}", CLIENT: UPGRADE}}}
    pause = pause_of(node, ["example.com/*"])
    assert pause is not None
    assert pause.label == f"example.com/clients=x_{UPGRADE}"


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
    assert CLIENT in message(rig)
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


# -- who asks for GPUs to be released, and what is said of it: a table


PAUSE = Pause("example.com/gpu=false")


ONE, ALL = Drain(("gpu-1",), reason="repair"), Drain(())


GPU = GpuUnit(1, Card("GPU-b", 1))


@pytest.mark.parametrize(
    ("pause", "drain", "of_gpu_0", "of_gpu_1", "of_node"),
    [
        (None, None, "", "", ""),
        (None, ONE, "", "drained: repair", ""),
        (None, ALL, "drained", "drained", "drained"),
        (PAUSE, None, *["label example.com/gpu=false"] * 3),
        (PAUSE, ONE, *["label example.com/gpu=false"] * 3),
    ],
)
def test_a_pause_covers_all_gpus_and_a_drain_those_that_it_names(
    pause: Pause | None, drain: Drain | None, of_gpu_0: str, of_gpu_1: str, of_node: str
) -> None:
    request = ReleaseRequest("node-a", pause, drain)
    found = (request.why("gpu-0"), request.why("gpu-1"), request.why_node())
    assert found == (of_gpu_0, of_gpu_1, of_node)


@pytest.mark.parametrize(
    ("request_", "others_held", "parts"),
    [
        (
            ReleaseRequest("node-a", drain=ONE),
            True,
            (
                "(drained: repair)",
                "it may be reset (nvidia-smi -r -i GPU-b)",
                "kubectl mig drain node-a",
                "kubectl mig resume node-a gpu-1 ends it",
            ),
        ),
        (
            ReleaseRequest("node-a", drain=ALL),
            False,
            ("(drained)", "the driver unloaded; ", "kubectl mig resume node-a gpu-1 ends it"),
        ),
        (
            ReleaseRequest("node-a", PAUSE, ALL),
            False,
            ("back in service when example.com/gpu is true again or gone",),
        ),
    ],
)
def test_the_text_says_what_may_be_done_and_what_ends_it(
    request_: ReleaseRequest, parts: tuple[str, ...], *, others_held: bool
) -> None:
    text = request_.text(GPU, others_held=others_held)
    assert [part for part in parts if part not in text] == []
