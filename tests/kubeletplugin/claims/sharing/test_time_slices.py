"""The length of turns on a whole GPU: set for a claim, put back when nobody needs it any more."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dra.common.resources import Obj
from kubeletplugin.claims.sharing import sharing as timeslices
from kubeletplugin.journal.entries import State
from kubeletplugin.journal.journal import Journal
from sim.nvml.driverfiles import script, time_slice
from sim.nvml.machine import GpuSpec
from tests.helpers.waiting import wait_for
from tests.kubeletplugin.claims.test_holders import assert_given_back
from tests.kubeletplugin.claims.test_holders import told as told_holder
from tests.kubeletplugin.helpers.rig import A100, DRIVER, Rig


def turns(interval: str = "", strategy: str = "TimeSlicing") -> Obj:
    sharing = {
        "strategy": strategy,
        **({"timeSlicing": {"interval": interval}} if interval else {}),
    }
    parameters = {"apiVersion": "mig.dra.dev/v1alpha1", "kind": "GpuConfig", "sharing": sharing}
    return {"source": "FromClaim", "opaque": {"driver": DRIVER, "parameters": parameters}}


@pytest.fixture
def whole(make_rig: Callable[..., Rig]) -> Rig:
    """A node with two whole GPUs, its plugin started."""
    rig = make_rig(GpuSpec(A100, mig=False), GpuSpec(A100, mig=False))
    rig.start()
    return rig


def lengths(rig: Rig) -> list[int]:
    return [time_slice(rig.roots.host, gpu.uuid) for gpu in rig.machine.state().gpus]


def program(rig: Rig, text: str) -> None:
    path = rig.roots.host / "usr/bin/nvidia-smi"
    path.write_text(text)
    path.chmod(0o755)


def test_it_is_as_long_as_the_claim_says_until_the_claim_ends(whole: Rig) -> None:
    for number, interval in enumerate(("Default", "Short", "Medium", "Long")):
        ref = whole.claim("gpu-1", config=[turns(interval)])
        whole.prepared(ref)
        assert lengths(whole) == [0, number]
        whole.prepared(ref)
        if interval == "Long":
            whole.restart()
            assert lengths(whole) == [0, number]
        assert whole.unprepare(ref) == ""
        assert lengths(whole) == [0, 0]
        assert whole.journal() == ()


@pytest.mark.parametrize("wanted", [True, False])
def test_what_a_process_had_set_when_it_was_killed_is_finished_or_put_back(
    whole: Rig, *, wanted: bool
) -> None:
    ref = whole.claim("gpu-0", config=[turns("Medium")], expected=wanted)
    whole.prepared(ref)
    whole.stop()
    journal = Journal(whole.roots.state / "journal.json")
    journal.put(*(e.at(State.INTENT, remade=False) for e in journal.entries()))
    whole.start()
    assert lengths(whole) == [2 if wanted else 0, 0]
    assert [e.state for e in whole.journal()] == ([State.PREPARED] if wanted else [])


REFUSALS = (
    ("echo 'Not Supported'; exit 3", "refuses time slice Short on GPU", "Not Supported"),
    ("exec sleep 600", "did not set time slice Short", "within 0.2 s"),
)


def test_a_claim_whose_length_cannot_be_set_is_not_prepared(
    whole: Rig, short_patience: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    ref = whole.claim("gpu-0", config=[turns("Short")])
    for body, *told in REFUSALS:
        program(whole, f"#!/bin/sh\n{body}\n")
        with monkeypatch.context() as briefly:
            briefly.setattr(timeslices, "TIME_SLICE_SECONDS", 0.2)
            error = whole.refused(ref)
        assert all(part in error for part in told)
        assert all(e.state is not State.PREPARED for e in whole.journal())
    program(whole, script("1"))
    whole.prepared(ref)
    assert lengths(whole) == [1, 0]


def test_without_the_program_it_is_said_what_is_missing_and_no_gpu_is_kept_back(whole: Rig) -> None:
    ref = whole.claim("gpu-0", config=[turns("Long")])
    whole.prepared(ref)
    (whole.roots.host / "usr/bin/nvidia-smi").unlink()
    error = whole.refused(whole.claim("gpu-1", config=[turns("Short")]))
    assert "time slices are set by nvidia-smi, not found below" in error
    assert {e.claim for e in whole.journal()} == {ref}
    program(whole, "#!/bin/sh\nexit 3\n")
    assert whole.unprepare(ref) == ""
    assert whole.journal() == ()
    whole.prepared(whole.claim("gpu-0"))


def test_a_length_that_is_not_put_back_for_now_is_put_back_later(
    whole: Rig, short_patience: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    ref = whole.claim("gpu-0", config=[turns("Long")])
    whole.prepared(ref)
    program(whole, "#!/bin/sh\nexec sleep 600\n")
    with monkeypatch.context() as briefly:
        briefly.setattr(timeslices, "TIME_SLICE_SECONDS", 0.2)
        assert whole.unprepare(ref) == ""
    (left,) = whole.journal()
    assert left.state is State.LEFTOVER
    assert "did not set time slice Default" in left.note
    program(whole, script("1"))
    daemon = whole.daemon
    assert daemon is not None

    def is_put_back() -> bool:
        daemon.janitor.tend(everything=True)  # passes over a claim that is worked on
        return (whole.journal(), lengths(whole)) == ((), [0, 0])

    wait_for("the length", is_put_back)


def test_it_stays_while_a_pod_has_the_gpu_of_a_claim_that_is_gone(whole: Rig) -> None:
    ref = whole.claim("gpu-1", config=[turns("Long")])
    whole.prepared(ref)
    whole.run_pod("holder", ref)
    whole.delete_claim(ref)
    assert "default/holder" in told_holder(whole, ref)
    assert "held by claim" in whole.refused(whole.claim("gpu-1", config=[turns("Short")]))
    assert lengths(whole) == [0, 3]
    whole.pods.clear()
    assert_given_back(whole, ref)
    assert lengths(whole) == [0, 0]
