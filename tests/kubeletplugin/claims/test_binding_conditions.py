"""Slices for which kube-scheduler waits before it binds a pod: made, and told by conditions."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dra.claims.conditions import SLICE_MADE, SLICE_NOT_MADE
from dra.common.resources import RESOURCE_CLAIMS
from dra.gpu.inventory import AllocatorKind, ClaimRef
from dra.kube.errors import KubeError, UnavailableError
from kubeletplugin import times
from kubeletplugin.claims import early
from kubeletplugin.options import BindingConditions
from kubeletplugin.publishing.resourceslices import FailedGpus
from sim.nvml.cabi import Return
from sim.nvml.faults import Fault
from tests.dra.kube.clocks import FakeClock
from tests.helpers.waiting import wait_for
from tests.kubeletplugin.helpers.publishedslices import devices
from tests.kubeletplugin.helpers.rig import Rig

DEVICE, BESIDE, ELSEWHERE = "gpu-0-mig-1g5gb-19-4", "gpu-0-mig-1g5gb-19-5", "gpu-1-mig-1g5gb-19-0"
CREATE = "nvmlDeviceCreateGpuInstance*"
MADE, REFUSED = (SLICE_MADE, "True"), (SLICE_NOT_MADE, "True")


def told(rig: Rig, ref: ClaimRef) -> dict[str, list[tuple[str, str]]]:
    """Type and status of the conditions of a claim's devices."""
    claim = rig.api.get(RESOURCE_CLAIMS, ref.name, namespace=ref.namespace)
    return {
        d["device"]: [(c["type"], c["status"]) for c in d["conditions"]]
        for d in claim.get("status", {}).get("devices", [])
    }


def awaited(rig: Rig, *given: str) -> ClaimRef:
    return rig.claim(*given, expected=True, awaited=True)


def refuse(rig: Rig, *, code: int = Return.INVALID_ARGUMENT, gpu: int = 0, times: int = 0) -> None:
    fault = Fault(id="no", function=CREATE, gpu=gpu, action="return", code=code, times=times)
    rig.machine.inject(fault)


def values(rig: Rig, gpu: int) -> set[str]:
    """Values of the taints of a GPU's devices; an empty one for a device without."""
    found = [d for name, d in devices(rig).items() if name.startswith(f"gpu-{gpu}-")]
    return {t["value"] for d in found for t in d.get("taints", [{"value": ""}])}


def made_first(rig: Rig) -> set[str]:
    """The GPUs whose devices are published with binding conditions."""
    return {name[:5] for name, d in devices(rig).items() if d.get("bindingConditions")}


# -- made


def test_the_condition_is_set_before_kubelet_asks_and_stays_until_the_slice_goes(rig: Rig) -> None:
    ref = awaited(rig, DEVICE, ELSEWHERE)
    wait_for("the conditions", lambda: told(rig, ref) == {DEVICE: [MADE], ELSEWHERE: [MADE]})
    creations = sum("CreateGpuInstance" in name for name in rig.mutations())
    assert creations == 2
    rig.prepared(ref)
    ready = [("Ready", "True"), MADE]
    wait_for("readiness", lambda: told(rig, ref) == {DEVICE: ready, ELSEWHERE: ready})
    assert sum("CreateGpuInstance" in name for name in rig.mutations()) == creations
    assert rig.unprepare(ref) == ""
    assert rig.claim_status(ref) == []


def test_each_pod_that_comes_to_a_claim_is_told(rig: Rig) -> None:
    ref = awaited(rig, DEVICE)
    wait_for("the condition", lambda: told(rig, ref) == {DEVICE: [MADE]})
    rig.prepared(ref)
    assert rig.statuses_idle()
    [first] = rig.api.get(RESOURCE_CLAIMS, ref.name, namespace="default")["status"]["reservedFor"]
    second, third = ({**first, "uid": uid} for uid in ("second", "third"))
    rig.set_status(ref, devices=None, reservedFor=[first, second])
    wait_for("it again", lambda: told(rig, ref) == {DEVICE: [("Ready", "True"), MADE]})
    rig.set_status(ref, reservedFor=[first])
    assert rig.unprepare(ref) == ""
    assert rig.claim_status(ref) == []
    rig.set_status(ref, reservedFor=[{**first, "name": "renamed"}])
    assert rig.clean(), "the first pod was bound, and has ended"
    rig.set_status(ref, reservedFor=[first, third])
    wait_for("the condition", lambda: told(rig, ref) == {DEVICE: [MADE]})


def test_what_is_reserved_no_more_is_given_back_and_said_to_be_made_no_more(rig: Rig) -> None:
    ref = awaited(rig, DEVICE)
    wait_for("the condition", lambda: told(rig, ref) == {DEVICE: [MADE]})
    rig.set_status(ref, reservedFor=None)
    wait_for("its end", rig.clean)
    wait_for("the end of the condition", lambda: told(rig, ref) == {})
    rig.set_status(ref, reservedFor=[{"resource": "pods", "name": "p", "uid": "another"}])
    wait_for("the condition", lambda: told(rig, ref) == {DEVICE: [MADE]})
    rig.set_status(ref, reservedFor=None, allocation=None, devices=None)
    wait_for("its end", rig.clean)
    assert rig.statuses_idle()
    written = [path for _, path in rig.http.writes if f"/{ref.name}/" in path]
    assert len(written) == 3, "nothing is written to a claim that is not allocated"


def test_it_is_kept_for_longer_than_what_nobody_waits_for(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig()
    rig.eager_seconds = 0.3
    rig.start()
    ref = awaited(rig, DEVICE)
    wait_for("the condition", lambda: told(rig, ref) == {DEVICE: [MADE]})
    other = rig.claim(BESIDE, expected=True)
    wait_for("the other", lambda: other in {e.claim for e in rig.journal()})
    wait_for("the other's end", lambda: other not in {e.claim for e in rig.journal()})
    assert {e.claim for e in rig.journal()} == {ref}
    assert told(rig, ref) == {DEVICE: [MADE]}


# -- not made


def test_what_cannot_be_made_is_told_and_the_gpu_left_out_for_a_while(
    scheduled: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = scheduled
    refuse(rig)
    assert made_first(rig) == set()
    ref = awaited(rig, DEVICE, ELSEWHERE)
    both = {DEVICE: [REFUSED], ELSEWHERE: [REFUSED]}
    wait_for("the conditions", lambda: told(rig, ref) == both)
    claim = rig.api.get(RESOURCE_CLAIMS, ref.name, namespace=ref.namespace)
    condition = claim["status"]["devices"][0]["conditions"][0]
    assert condition["reason"] == "CreationFailed"
    assert "INVALID_ARGUMENT" in condition["message"]
    wait_for("the taints", lambda: (values(rig, 0), values(rig, 1)) == ({"CreationFailed"}, {""}))
    assert rig.clean()
    # kube-scheduler takes the pod out, and the allocation back.
    rig.set_status(ref, reservedFor=None)
    assert rig.statuses_idle()
    assert told(rig, ref) == both
    monkeypatch.setattr(times, "FAILED_FIRST_SECONDS", 0.0)
    rig.restart()
    wait_for("no taints", lambda: values(rig, 0) == {""})
    failing = awaited(rig, BESIDE)
    wait_for("the condition", lambda: told(rig, failing) == {BESIDE: [REFUSED]})
    wait_for("another form", lambda: (values(rig, 0), made_first(rig)) == ({""}, {"gpu-0"}))


def test_a_prepare_that_fails_has_the_gpu_left_out_too(scheduled: Rig) -> None:
    refuse(scheduled)
    scheduled.refused(scheduled.claim(DEVICE))
    wait_for("the taints", lambda: values(scheduled, 0) == {"CreationFailed"})


def test_what_is_not_on_the_node_is_told(rig: Rig) -> None:
    ref = awaited(rig, "gpu-7-mig-1g5gb-19-4")
    wait_for("it", lambda: told(rig, ref) == {"gpu-7-mig-1g5gb-19-4": [REFUSED]})


def test_what_passes_is_waited_for(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(early, "EARLY_AGAIN_SECONDS", 0.05)
    refuse(rig, code=Return.IN_USE, times=2)
    cut = [UnavailableError("no answer")] * 2

    def unreachable(method: str, path: str) -> KubeError | None:
        return cut.pop() if method == "GET" and "/claim-" in path and cut else None

    rig.http.refuse = unreachable
    ref = awaited(rig, DEVICE)
    wait_for("the condition", lambda: told(rig, ref) == {DEVICE: [MADE]})
    assert not cut


@pytest.mark.parametrize(
    "wasters", [["default"], ["one", "two"]], ids=["his own", "two others together"]
)
def test_what_kube_scheduler_waits_for_is_made_whoever_has_wasted_slices(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, wasters: list[str]
) -> None:
    monkeypatch.setattr(early, "FORGIVEN_SECONDS", 1e9)
    assert rig.daemon is not None
    allowance = rig.daemon.early._allowance
    (gpu, *_) = (unit.uuid for unit in rig.daemon.hardware.units())
    for namespace in wasters:
        for _ in range(early.MOST_OF_NAMESPACE):
            allowance.waste(namespace, [gpu])
    assert not allowance.is_left("default", [gpu]), "nothing is made ahead of a bound pod"
    ref = awaited(rig, DEVICE)
    wait_for("the condition", lambda: told(rig, ref) == {DEVICE: [MADE]})


def test_a_plugin_that_is_started_anew_says_what_was_made_before(rig: Rig) -> None:
    rig.http.refuse = lambda method, _: UnavailableError("cut") if method == "PATCH" else None
    ref = awaited(rig, DEVICE)
    wait_for("the slice", lambda: [e.ci_id for e in rig.journal() if e.ci_id is not None])
    rig.stop()
    rig.http.refuse = lambda _method, _path: None
    assert told(rig, ref) == {}
    rig.start()
    wait_for("the condition", lambda: told(rig, ref) == {DEVICE: [MADE]})
    assert sum("CreateGpuInstance" in name for name in rig.mutations()) == 1


def test_it_is_published_of_all_slices_where_that_is_asked_for(
    make_rig: Callable[..., Rig],
) -> None:
    rig = make_rig()
    rig.allocator = AllocatorKind.SCHEDULER
    rig.binding_conditions = BindingConditions.ALWAYS
    rig.start()
    wait_for("slices", lambda: len(devices(rig)) == 50)
    assert {
        (*d["bindingConditions"], *d["bindingFailureConditions"]) for d in devices(rig).values()
    } == {(SLICE_MADE, SLICE_NOT_MADE)}


def test_what_fails_once_it_was_let_in_stays_out_longer_until_it_has_been_well_for_long() -> None:
    first, longest, clock = times.FAILED_FIRST_SECONDS, times.FAILED_LONGEST_SECONDS, FakeClock()
    failed = FailedGpus(BindingConditions.AFTER_FAILURE, on_change=lambda: None, clock=clock)

    def doubts() -> tuple[bool, bool]:
        found = failed.doubts(())
        return "a" in found.left_out, "a" in found.made_first

    failed.failed(["a"])
    clock.sleep(5.0)
    failed.failed(["a"])  # while it is out: from now on, and no longer than before
    assert (failed.due(), doubts()) == (first, (True, True))
    failed.prove(["a"])
    assert doubts() == (True, True)
    clock.sleep(first)
    assert doubts() == (False, True)
    failed.failed(["a"])
    assert failed.due() == 2 * first
    clock.sleep(2 * first)
    assert (failed.due(), doubts()) == (longest, (False, True))
    clock.sleep(longest)
    assert (failed.due(), doubts()) == (0.0, (False, False))
    failed.failed(["a"])
    assert failed.due() == first
    clock.sleep(first)
    failed.prove(["a"])
    assert doubts() == (False, False)
