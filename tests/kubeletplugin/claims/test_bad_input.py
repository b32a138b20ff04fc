"""Claims and nodes that cannot be served: a clear error, and no change to hardware."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dra.common.resources import Obj
from dra.gpu.inventory import ClaimRef
from sim.nvml.faults import Fault
from sim.nvml.machine import GpuSpec
from tests.helpers.waiting import wait_for
from tests.kubeletplugin.helpers.rig import A100, Rig

GOOD = "gpu-0-mig-1g5gb-19-4"


def refuse(rig: Rig, ref: ClaimRef, *parts: str) -> None:
    """Prepare has to fail with all these words, and to leave no trace."""
    hardware, mutations = rig.machine.snapshot(), rig.mutations()
    error = rig.refused(ref)
    for part in (f"default/{ref.name}", ref.uid, *parts):
        assert part in error
    assert rig.machine.snapshot() == hardware
    assert rig.mutations() == mutations
    assert rig.journal() == ()
    assert rig.specs() == []


def test_devices_of_one_claim_that_overlap_are_refused(rig: Rig) -> None:
    error = rig.refused(rig.claim(GOOD, "gpu-0-mig-3g20gb-9-4"))
    assert "memory slices" in error
    assert rig.clean()


def test_mig_mode_off_is_told_with_the_command_that_turns_it_on(
    make_rig: Callable[..., Rig],
) -> None:
    rig = make_rig(GpuSpec(A100, mig=False))
    rig.start()
    uuid = rig.machine.gpu(0).uuid
    refuse(rig, rig.claim(GOOD), "MIG mode of gpu-0", "is off", f"nvidia-smi -i {uuid} -mig 1")
    [gpu] = rig.mignode()["status"]["gpus"]
    assert gpu["reason"] == "MIGDisabled"
    assert gpu["migMode"] == {"enabled": False, "pending": False}


def test_a_pending_mode_change_is_told_and_the_gpu_is_not_offered(
    make_rig: Callable[..., Rig],
) -> None:
    rig = make_rig(GpuSpec(A100))
    with rig.machine.store.change() as state:
        state.gpus[0].mig_pending = False
    rig.start()
    refuse(rig, rig.claim(GOOD), "MIG mode turns off at the next GPU reset")
    [gpu] = rig.mignode()["status"]["gpus"]
    assert gpu["reason"] == "MIGModePending"
    assert "reset the GPU" in gpu["message"]


def ready(rig: Rig) -> Obj:
    [condition] = rig.mignode()["status"]["conditions"]
    assert condition["type"] == "Ready"
    found: Obj = condition
    return found


def test_without_nvml_the_plugin_stays_up_says_why_and_serves_once_it_is_there(
    make_rig: Callable[..., Rig],
) -> None:
    rig = make_rig()
    rig.machine.inject(Fault(id="init", function="nvmlInit*", action="return", code=9, times=0))
    rig.start(ready=False)
    wait_for("MigNode", rig.published)
    wait_for("the reason", lambda: "DRIVER_NOT_LOADED (9)" in ready(rig)["message"])
    assert ready(rig)["status"] == "False"
    refuse(rig, rig.claim(GOOD), "DRIVER_NOT_LOADED (9)", "modprobe nvidia")
    assert rig.unprepare(rig.claim(GOOD)) == "", "an unknown claim needs no NVML"
    rig.machine.clear_faults()
    wait_for("NVML", lambda: ready(rig)["status"] == "True")
    assert rig.prepared(rig.claim(GOOD))


def test_a_node_without_gpus_says_so(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(GpuSpec(A100))
    with rig.machine.store.change() as state:
        state.gpus = []
    rig.start()
    wait_for("MigNode", lambda: "no NVIDIA GPU" in ready(rig)["message"])
    assert ready(rig)["status"] == "False"
    refuse(rig, rig.claim(GOOD), "no GPU called gpu-0", "it has: none")


@pytest.mark.parametrize("uid", ["../../etc/passwd", "a/b", "x" * 5000, "", "a\nb"])
def test_a_claim_uid_that_is_no_file_name_is_refused(rig: Rig, uid: str) -> None:
    ref = rig.claim(GOOD)
    assert rig.refused(ClaimRef("default", ref.name, uid))
    assert rig.unprepare(ClaimRef("default", ref.name, uid)) or not uid
    assert rig.mutations() == []


def test_a_gpu_that_is_lost_is_shown_with_its_claims_and_the_other_goes_on(rig: Rig) -> None:
    ref = rig.claim(GOOD)
    rig.prepared(ref)
    rig.machine.lose(0)
    assert rig.daemon is not None
    rig.poll()

    def lost() -> Obj:
        found: Obj = rig.mignode()["status"]["gpus"][0]
        return found

    wait_for("MigNode", lambda: lost().get("reason") == "GpuLost")
    assert "GPU_IS_LOST (15)" in lost()["message"]
    assert [i["claim"]["uid"] for i in lost()["instances"]] == [ref.uid]
    assert "GPU_IS_LOST (15)" in rig.refused(rig.claim("gpu-0-mig-1g5gb-19-0"))
    assert rig.prepared(rig.claim("gpu-1-mig-1g5gb-19-4"))
