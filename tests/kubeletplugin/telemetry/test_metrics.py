"""What the plugin shows of its work and of the node: to Prometheus, in numbers that are true."""

from __future__ import annotations

from collections.abc import Callable

import pynvml
import pytest

from dra.common.resources import RESOURCE_CLAIMS
from dra.gpu.inventory import ClaimRef
from kubeletplugin.journal.entries import State
from kubeletplugin.telemetry.observer import Action
from sim.nvml.faults import Fault
from sim.nvml.machine import GpuSpec
from sim.nvml.products import Variants
from tests.helpers.scrape import Scrape, collected
from tests.helpers.waiting import wait_for
from tests.kubeletplugin.claims.test_reclaim import PID, in_use
from tests.kubeletplugin.claims.test_restart import change_entry
from tests.kubeletplugin.helpers.lostjournals import lose_journal, prepared
from tests.kubeletplugin.helpers.rig import A100, Rig

SLICE = "gpu-0-mig-1g5gb-19-4"


def scrape(rig: Rig) -> Scrape:
    return collected(rig.telemetry.registry)


def calls(found: Scrape, operation: str, **labels: str) -> float:
    return sum(found.values(f"mig_dra_{operation}_duration_seconds_count", **labels))


def actions(rig: Rig) -> dict[str, float]:
    """The actions that were taken at least once."""
    found = scrape(rig)
    name = "mig_dra_recovery_actions_total"
    counted = {a.value: found.value(name, action=a.value) for a in Action}
    return {action: count for action, count in counted.items() if count}


def reserve(rig: Rig, ref: ClaimRef, *pods: str) -> None:
    consumers = [{"resource": "pods", "name": pod, "uid": f"uid-of-{pod}"} for pod in pods]
    rig.api.patch(
        RESOURCE_CLAIMS,
        ref.name,
        {"status": {"reservedFor": consumers}},
        namespace="default",
        subresource="status",
    )


def look(rig: Rig) -> None:
    assert rig.daemon is not None
    # The janitor's own thread may be at work: then his round is waited for, not one from before.
    assert rig.daemon.node.tasks.wait_idle(10)
    rig.daemon.janitor.tend(everything=True)
    assert rig.daemon.node.tasks.wait_idle(10)


def info(rig: Rig) -> list[dict[str, str]]:
    return scrape(rig).labels("mig_dra_claim_info")


def test_a_prepared_claim_shows_whose_it_is_and_where(rig: Rig) -> None:
    ref = rig.claim(SLICE)
    reserve(rig, ref, "trainer")
    rig.prepared(ref)
    [entry] = rig.journal()
    assert info(rig) == [
        {
            "namespace": "default",
            "pod": "trainer",
            "claim": ref.name,
            "gpu_uuid": rig.machine.gpu(0).uuid,
            "mig_uuid": entry.mig_uuid,
            "gi": str(entry.gi_id),
            "ci": str(entry.ci_id),
            "profile": "1g.5gb",
        }
    ]
    rig.restart()
    assert info(rig)[0]["pod"] == "trainer", "known again after a restart"
    assert rig.unprepare(ref) == ""
    assert info(rig) == []


def test_calls_are_timed_by_profile_and_result(rig: Rig) -> None:
    ref = rig.claim(SLICE)
    rig.prepared(ref)
    rig.prepared(ref)
    rig.refused(rig.claim("gpu-0-mig-1g5gb-19-4"))  # held by the first
    rig.refused(rig.claim("gpu-0-mig-1g5gb-19-7"))  # no such start
    gone = rig.claim(SLICE)
    rig.delete_claim(gone)
    rig.refused(gone)
    rig.prepared(rig.claim("gpu-0-mig-2g10gb-14-0", "gpu-1-mig-1g5gb-19-0"))
    rig.unprepare(ref)
    found = scrape(rig)
    assert calls(found, "prepare", profile="1g.5gb", result="ok") == 2
    assert calls(found, "prepare", profile="1g.5gb", result="retry") == 1
    assert calls(found, "prepare", profile="1g.5gb", result="permanent") == 1
    assert calls(found, "prepare", profile="unknown", result="retry") == 1
    assert calls(found, "prepare", profile="several", result="ok") == 1
    assert calls(found, "prepare") == 6
    assert calls(found, "unprepare", profile="1g.5gb", result="ok") == 1
    assert found.value("mig_dra_claim_prepared_seconds_count") == 2, "a repeated call is none"


def test_a_fault_of_our_own_is_a_result_of_its_own(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError

    assert rig.daemon is not None
    monkeypatch.setattr(rig.daemon.statuses, "show", broken)
    rig.refused(rig.claim(SLICE))
    assert calls(scrape(rig), "prepare", result="internal") == 1


def test_slices_show_by_gpu_profile_and_state(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(GpuSpec(A100), GpuSpec(A100))
    rig.machine.create_slice(0, "3g.20gb", start=4)
    rig.start()
    rig.prepared(rig.claim("gpu-0-mig-1g5gb-19-0"))
    found = scrape(rig)
    slices = found.labels("mig_dra_slices")
    assert sorted((s["gpu"], s["profile"], s["state"]) for s in slices) == [
        ("gpu-0", "1g.5gb", "prepared"),
        ("gpu-0", "3g.20gb", "foreign"),
    ]
    assert found.value("mig_dra_ready") == 1
    assert found.labels("mig_dra_gpu_unavailable") == []


def test_places_that_are_unavailable_are_counted_by_reason(
    rig: Rig, short_patience: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unavailable() -> dict[tuple[str, str], float]:
        found = scrape(rig)
        name = "mig_dra_unavailable_placements"
        keys = [(e["gpu"], e["reason"]) for e in found.labels(name)]
        return {k: found.value(name, gpu=k[0], reason=k[1]) for k in keys}

    assert unavailable() == {}
    ref, lost, kept = in_use(rig), rig.claim("gpu-1-mig-1g5gb-19-0"), rig.claim(f"{SLICE[:-1]}5")
    rig.prepared(lost)
    rig.prepared(kept)
    rig.machine.configure(variants=Variants(gsp_keeps=10**6))
    rig.machine.lose(1)
    for each in (ref, lost, kept):
        assert rig.unprepare(each) == ""
    expected = {("gpu-0", "InUse"): 1, ("gpu-0", "Suspect"): 1, ("gpu-1", "GpuLost"): 1}
    wait_for("the reasons", lambda: unavailable() == expected)


def test_a_lost_slice_and_one_that_is_found_again_are_actions(rig: Rig) -> None:
    rig.prepared(rig.claim(SLICE))
    rig.machine.destroy_slice(0, rig.machine.gpu(0).gpu_instances[0].id)
    look(rig)
    assert actions(rig) == {"lost": 1}
    assert rig.daemon is not None
    rig.prepared(rig.claim("gpu-1-mig-1g5gb-19-4"))
    [_, entry] = rig.journal()
    rig.daemon.common.journal.put(entry.at(State.LOST))
    look(rig)
    assert actions(rig) == {"lost": 1, "found": 1}


@pytest.mark.usefixtures("short_patience")
def test_what_is_reclaimed_later_is_an_action(rig: Rig) -> None:
    ref = in_use(rig)
    rig.unprepare(ref)
    assert scrape(rig).value("mig_dra_slices", state="reclaiming") == 1
    look(rig)
    assert actions(rig) == {}
    rig.machine.end_process(PID)
    look(rig)
    wait_for("the reclaim", lambda: actions(rig) == {"reclaimed": 1})


@pytest.mark.parametrize(("reserved", "action"), [(True, "finished"), (False, "undone")])
def test_what_was_left_half_done_is_an_action(rig: Rig, *, reserved: bool, action: str) -> None:
    prepared(rig, reserved=reserved)
    rig.stop()
    change_entry(rig, state=State.CI_CREATED)
    rig.start()
    assert actions(rig) == {action: 1}


def test_a_rebuilt_journal_and_a_swept_spec_are_actions(rig: Rig) -> None:
    prepared(rig)
    rig.stop()
    lose_journal(rig)
    [spec] = (rig.roots.cdi / name for name in rig.specs())
    spec.with_name(spec.name.replace("_", "_00000000-")).write_bytes(spec.read_bytes())
    rig.start()
    assert actions(rig) == {"rebuilt": 1, "swept": 1}


# -- metrics of NVML's calls and of waits for a GPU


def test_nvml_calls_are_counted_by_code(rig: Rig) -> None:
    rig.machine.inject(
        Fault(
            id="full",
            function="nvmlDeviceCreateGpuInstanceWithPlacement",
            action="return",
            code=pynvml.NVML_ERROR_INSUFFICIENT_RESOURCES,
        )
    )
    rig.refused(rig.claim("gpu-0-mig-1g5gb-19-4"))
    rig.prepared(rig.claim("gpu-1-mig-1g5gb-19-0"))
    found = scrape(rig)
    create = "nvmlDeviceCreateGpuInstanceWithPlacement"
    name = "mig_dra_nvml_calls_total"
    assert found.value(name, operation=create, code="INSUFFICIENT_RESOURCES") == 1
    assert found.value(name, operation=create, code="SUCCESS") == 1
    assert found.value("mig_dra_nvml_call_duration_seconds_count", operation=create) == 2


def test_the_lock_of_every_gpu_is_listened_to(rig: Rig) -> None:
    assert rig.daemon is not None
    count = "mig_dra_gpu_lock_wait_seconds_count"
    for unit in rig.daemon.hardware.units():
        with unit.lock:
            before = scrape(rig).value(count)
            assert not unit.lock.enter(0)
            assert scrape(rig).value(count) > before
