"""Which failed Prepares are called permanent, to whom that is told, and how it is taken back."""

from __future__ import annotations

from kubeletplugin.errors import (
    BusyError,
    ClaimError,
    DeviceError,
    HardwareError,
    HostError,
    is_permanent,
)
from kubeletplugin.nvml.errors import UndeliverableError, translate
from tests.helpers.waiting import wait_for
from tests.kubeletplugin.helpers.reported import verdict
from tests.kubeletplugin.helpers.rig import Rig

SLICE = "gpu-0-mig-1g5gb-19-4"


def test_a_claim_that_was_prepared_before_mig_mode_went_keeps_its_place_and_is_retried(
    rig: Rig,
) -> None:
    ref = rig.claim(SLICE)
    rig.prepared(ref)
    assert rig.daemon is not None
    rig.machine.set_mig_mode(0, enabled=False)
    rig.poll()
    rig.daemon.janitor.tend(everything=True)
    assert "MIG mode of gpu-0" in rig.refused(ref)
    assert verdict(rig, ref) == ""
    assert [e.claim for e in rig.journal()] == [ref]
    rig.machine.set_mig_mode(0, enabled=True)
    rig.poll()
    assert rig.prepared(ref)


def test_no_permission_takes_the_gpu_out_until_a_slice_can_be_made(rig: Rig) -> None:
    rig.machine.configure(privileged=False)
    ref = rig.claim(SLICE)
    assert "run the plugin as a privileged container" in rig.refused(ref)
    assert "NO_PERMISSION" in verdict(rig, ref)

    def reasons() -> list[str]:
        return [g.get("reason", "") for g in rig.mignode()["status"]["gpus"]]

    wait_for("the MigNode", lambda: reasons() == ["NoPermission", ""])
    rig.machine.configure(privileged=True)
    assert rig.prepared(ref)
    wait_for("the MigNode", lambda: reasons() == ["", ""])
    assert verdict(rig, ref) == ""


def test_permanent_is_what_device_gpu_or_host_say_and_not_what_passes_or_is_the_claims_own() -> (
    None
):
    def caused(code: int, *, passing: bool = False) -> HardwareError:
        error = HardwareError("x", passing=passing)
        error.__cause__ = translate("nvmlDeviceCreateGpuInstanceWithPlacement", code, gpu="GPU-1")
        return error

    host = HostError("x")
    host.__cause__ = OSError(30, "Read-only file system")
    full = HostError("x")
    full.__cause__ = OSError(28, "No space left on device")
    assert is_permanent(DeviceError("x"))
    assert [is_permanent(caused(c)) for c in (4, 15, 16)] == [True] * 3
    assert [is_permanent(caused(c)) for c in (3, 10, 13, 19, 23, 999)] == [False] * 6
    refused = HardwareError("x")
    refused.__cause__ = UndeliverableError("y", 3, gpu="GPU-1", profile="1g.5gb", detail="z")
    assert is_permanent(refused)
    assert not is_permanent(caused(4, passing=True))
    assert not is_permanent(BusyError("x"))
    assert not is_permanent(ClaimError("x"))
    assert is_permanent(host)
    assert not is_permanent(full)
