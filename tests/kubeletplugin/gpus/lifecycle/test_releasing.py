"""A drained GPU, or node, is released: it can be reset under the plugin."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from kubeletplugin.nvml.events import RESET_XIDS
from sim.nvml.cabi import Return
from sim.nvml.machine import GpuSpec, Machine
from sim.nvml.products import Variants
from tests.helpers.waiting import wait_for
from tests.kubeletplugin.helpers.releasing import (
    FIRST,
    RELEASED,
    SECOND,
    drain,
    held,
    message,
    resume,
    wait_released,
)
from tests.kubeletplugin.helpers.reported import events, reasons, verdict
from tests.kubeletplugin.helpers.rig import A100, Rig


def test_a_drained_gpu_is_released_reset_and_taken_up_again(rig: Rig) -> None:
    other = rig.claim(SECOND)
    rig.prepared(other)
    drain(rig, "gpu-0")
    wait_released(rig, 0)
    # Opened anew, the library holds a GPU from the first call about it on.
    wait_for("the other GPU", lambda: held(rig) == [1])
    uuid = rig.machine.gpu(0).uuid
    for words in (f"nvidia-smi -r -i {uuid}", f"kubectl mig resume {rig.node} gpu-0"):
        assert words in message(rig)
    wait_for("the event", lambda: RELEASED in dict(events(rig, rig.node)))
    rig.machine.reset_gpu(0)
    # Kubelet is served meanwhile.
    refused = rig.claim(FIRST)
    assert f"kubectl mig resume {rig.node} gpu-0" in rig.refused(refused)
    assert verdict(rig, refused) == "", "it ends when the work on the GPU does"
    assert rig.unprepare(refused) == ""
    assert rig.unprepare(other) == ""
    rig.prepared(rig.claim("gpu-1-mig-1g5gb-19-4"))
    wait_for("the GPUs held", lambda: held(rig) == [1])
    resume(rig)
    wait_released(rig)
    assert rig.prepared(rig.claim(FIRST))
    wait_for("the event", lambda: "GpuBackInService" in dict(events(rig, rig.node)))


@pytest.mark.usefixtures("short_patience")
@pytest.mark.parametrize("variants", [Variants(gsp_keeps=10**6)])
def test_a_gpu_that_keeps_a_place_is_drained_and_reset_as_the_message_says(rig: Rig) -> None:
    ref = rig.claim(FIRST)
    rig.prepared(ref)
    assert rig.unprepare(ref) == ""

    def told() -> str:
        return str(rig.mignode()["status"]["gpus"][0]["instances"][0].get("message", ""))

    wait_for("the message", lambda: "kubectl mig drain" in told())
    drain(rig, "gpu-0")
    wait_released(rig, 0)
    rig.machine.reset_gpu(0)
    resume(rig)
    wait_released(rig)
    wait_for("the place", rig.clean)
    assert rig.prepared(rig.claim(FIRST))


def test_looking_at_the_hardware_does_not_open_what_is_released(rig: Rig) -> None:
    drain(rig, "gpu-0")
    wait_released(rig, 0)
    assert rig.daemon is not None
    rig.poll()
    rig.daemon.hardware.discover()
    rig.daemon.janitor.tend(everything=True)
    rig.daemon.hardware.look_soon(rig.machine.gpu(0).uuid)

    def heard() -> bool:
        rig.machine.ask_recovery(1, 1)  # for its watch had to begin anew
        return reasons(rig) == [RELEASED, "GpuRecoveryRequired"]

    wait_for("the other GPU to be watched", heard)
    wait_for("the GPUs held", lambda: held(rig) == [1])
    assert [g["name"] for g in rig.mignode()["status"]["gpus"]] == ["gpu-0", "gpu-1"]


@pytest.mark.parametrize(
    ("variants", "harm", "reason"),
    [
        (Variants(), lambda m: m.lose(0), "GpuLost"),
        (Variants(), lambda m: m.ask_recovery(0, 1), "GpuRecoveryRequired"),
        (Variants(recovery_action="none"), lambda m: m.raise_event(0, 79), "XidError"),
    ],
    ids=["lost", "by verdict", "by XID"],
)
def test_what_harmed_a_gpu_is_told_after_its_release(
    rig: Rig, harm: Callable[[Machine], object], reason: str
) -> None:
    harm(rig.machine)
    wait_for("the harm", lambda: reasons(rig) == [reason, ""])
    drain(rig, "gpu-0")
    wait_released(rig, 0)
    notes = rig.mignode()["status"]["gpus"][0]["health"]["notes"]
    assert notes == [f"{reason} when it was released"]
    rig.machine.recover(0)
    resume(rig)
    wait_released(rig)
    assert not rig.mignode()["status"]["gpus"][0].get("health", {}).get("notes")


def test_a_gpu_is_not_released_while_a_claim_is_prepared_on_it(rig: Rig) -> None:
    ref = rig.claim(FIRST)
    rig.prepared(ref)
    drain(rig, "gpu-0")
    assert rig.daemon is not None
    wait_for("the drain", lambda: rig.daemon is not None and rig.daemon.mignode.wishes.drain)
    rig.daemon.loop._step()
    assert reasons(rig) == ["", ""]
    assert rig.prepared(ref), "kubelet asks again when a container restarts"
    wait_for("the GPUs held", lambda: held(rig) == [0, 1])
    assert rig.unprepare(ref) == ""
    wait_released(rig, 0)
    assert rig.slices() == []


@pytest.mark.every_variant
def test_a_drained_node_lets_go_of_the_driver(rig: Rig) -> None:
    drain(rig)
    wait_released(rig, 0, 1)
    assert held(rig) == []
    assert rig.daemon is not None
    calls = rig.daemon.hardware.session._calls
    wait_for("the library to be empty, waits for events too", lambda: not calls.inside())
    assert "the driver unloaded" in message(rig)
    assert rig.machine.ask_mig_mode(0, enabled=False) == Return.SUCCESS
    rig.machine.reload_driver()
    assert f"kubectl mig resume {rig.node}" in rig.refused(rig.claim(FIRST))
    assert rig.is_ready
    resume(rig)
    wait_for("the GPUs", lambda: reasons(rig) == ["MIGDisabled", ""])
    assert rig.prepared(rig.claim(SECOND))


@pytest.mark.parametrize("variants", [Variants(recovery_action="none")], ids=["by XID"])
def test_a_sick_gpu_is_healthy_after_it_was_released_and_reset(rig: Rig) -> None:
    ref = rig.claim(FIRST)
    rig.prepared(ref)
    rig.machine.raise_event(0, min(RESET_XIDS))
    wait_for("the MigNode", lambda: reasons(rig) == ["XidError", ""])
    assert f"kubectl mig drain {rig.node} gpu-0" in message(rig)
    assert rig.unprepare(ref) == ""
    drain(rig, "gpu-0")
    wait_released(rig, 0)
    rig.machine.reset_gpu(0)
    resume(rig)
    wait_released(rig)
    assert rig.prepared(rig.claim(FIRST))


def test_what_is_left_on_a_lost_gpu_does_not_keep_it_from_being_reset(rig: Rig) -> None:
    ref = rig.claim(FIRST)
    rig.prepared(ref)
    rig.machine.lose(0)
    assert rig.unprepare(ref) == ""
    assert rig.journal()
    drain(rig, "gpu-0")
    wait_released(rig, 0)
    rig.machine.reset_gpu(0)
    rig.machine.recover(0)
    resume(rig)
    wait_released(rig)
    assert rig.daemon is not None
    rig.daemon.janitor.tend(everything=True)
    wait_for("the leftover to go", lambda: not rig.journal())


def test_a_plugin_that_starts_on_a_drained_node_does_not_open_the_driver(rig: Rig) -> None:
    drain(rig)
    wait_released(rig, 0, 1)
    rig.stop()
    rig.start(ready=False)
    wait_for("the reason", lambda: "released" in rig.refused(rig.claim(FIRST)))
    assert held(rig) == []
    wait_for("the MigNode", lambda: reasons(rig) == [RELEASED, RELEASED])
    rig.machine.reload_driver()
    resume(rig)
    wait_released(rig)
    assert rig.prepared(rig.claim(FIRST))


def test_a_plugin_that_starts_with_claims_opens_the_driver_although_the_node_is_drained(
    rig: Rig,
) -> None:
    ref = rig.claim(FIRST)
    rig.prepared(ref)
    drain(rig)
    rig.restart()
    assert rig.unprepare(ref) == ""
    wait_released(rig, 0, 1)


# -- remedies that messages name


def follow(rig: Rig, text: str) -> None:
    """Do what a message tells an administrator, as it stands there; all of it has to succeed."""
    names = {"<node>": rig.node, "<gpu>": "gpu-0"}
    words = " ".join(names.get(w, w) for w in re.sub(r"[(),;]", " ", text).split())
    uuid = rig.machine.gpu(0).uuid
    if f"kubectl mig drain {rig.node} gpu-0 --wait" in words:
        drain(rig, "gpu-0")
        wait_released(rig, 0)
    if f"nvidia-smi -i {uuid} -mig 1" in words:
        assert rig.machine.ask_mig_mode(0, enabled=True) == Return.SUCCESS
    elif f"nvidia-smi -r -i {uuid}" in words:
        rig.machine.reset_gpu(0)
    else:
        pytest.fail(f"nothing to do in: {text}")
    assert f"kubectl mig resume {rig.node} gpu-0" in words
    resume(rig)


def test_a_pending_mode_is_brought_into_force_as_the_message_says(
    make_rig: Callable[..., Rig],
) -> None:
    rig = make_rig(GpuSpec(A100, mig=False))
    with rig.machine.store.change() as state:
        state.gpus[0].mig_pending = True
    rig.start()
    follow(rig, message(rig))
    wait_released(rig)
    assert rig.prepared(rig.claim(FIRST))


@pytest.mark.parametrize(
    ("variants", "reason"),
    [(Variants(recovery_action="none"), "XidError"), (Variants(), "GpuRecoveryRequired")],
    ids=["by XID", "by verdict"],
)
def test_a_gpu_that_needs_a_reset_gets_it_as_the_message_says(rig: Rig, reason: str) -> None:
    rig.machine.ask_recovery(0, 1)
    rig.machine.raise_event(0, min(RESET_XIDS))
    wait_for("the MigNode", lambda: reasons(rig) == [reason, ""])
    follow(rig, message(rig))
    wait_released(rig)
    assert rig.prepared(rig.claim(FIRST))
