"""What the engine does with pods and claims, and when it leaves them alone."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from controller.allocate import Allocator
from controller.decision import Decision, Problem
from controller.engine import LOOK_AGAIN_SECONDS
from controller.writer import NotLeadingError
from dra.kube.errors import ConflictError, ForbiddenError, InvalidError, KubeError, UnavailableError
from dra.kube.resources import PODS, RESOURCE_CLAIMS
from tests.controller.bench import Bench, once
from tests.controller.objects import (
    FINALIZER,
    claim,
    device_class,
    gpu,
    instance,
    mignode,
    node,
    pod,
    request,
    versioned,
)

Obj = dict[str, Any]
STATUS = "resourceclaims/status"


def test_a_waiting_pod_gets_its_slice_finalizer_first() -> None:
    bench = Bench("node-a")
    bench.claim(claim("c"))
    bench.pod(pod("p", "c"))
    bench.run()
    assert bench.api.writes == ["resourceclaims", STATUS]
    stored = bench.api.get(RESOURCE_CLAIMS, "c")
    assert stored["metadata"]["finalizers"] == [FINALIZER]
    allocation = stored["status"]["allocation"]
    assert allocation["allocationTimestamp"] == "2026-01-01T00:00:00Z"
    (result,) = allocation["devices"]["results"]
    assert result["pool"] == "node-a-pool"
    assert bench.recorder.reasons("c") == ["Allocated"]
    assert bench.recorder.reasons("p") == ["Allocated"]


def test_a_claim_without_a_pod_is_not_allocated() -> None:
    bench = Bench("node-a")
    bench.claim(claim("c"))
    bench.run(seconds=100)
    assert bench.api.writes == []


def test_results_come_in_the_order_of_the_requests() -> None:
    bench = Bench("node-a")
    bench.claim(claim("c", request("b", "mig-1g.5gb"), request("a", "mig-3g.20gb")))
    bench.pod(pod("p", "c"))
    bench.run()
    assert [d.partition("-mig-")[2].split("-")[0] for d in bench.devices("c")] == [
        "1g5gb",
        "3g20gb",
    ]


@pytest.mark.parametrize("spec", [{"phase": "Running"}, {"phase": "Succeeded"}])
def test_pods_that_are_past_waiting_are_left_alone(spec: Obj) -> None:
    bench = Bench("node-a")
    bench.claim(claim("c"))
    bench.pod({**pod("p", "c"), "status": spec})
    bench.run()
    assert bench.api.writes == []


def test_a_claim_of_a_template_is_waited_for() -> None:
    bench = Bench("node-a")
    body = pod("p")
    body["spec"]["resourceClaims"] = [{"name": "s", "resourceClaimTemplateName": "t"}]
    bench.pod(body)
    bench.run()
    assert bench.api.writes == []
    owner = {"kind": "Pod", "name": "p", "uid": "uid-p", "controller": True}
    made = claim("p-s-x")
    made["metadata"]["ownerReferences"] = [owner]
    bench.claim(made)
    bench.pod(
        {**body, "status": {"resourceClaimStatuses": [{"name": "s", "resourceClaimName": "p-s-x"}]}}
    )
    bench.run()
    assert bench.devices("p-s-x")


def test_a_claim_that_another_pod_owns_is_not_taken() -> None:
    bench = Bench("node-a")
    made = claim("c")
    made["metadata"]["ownerReferences"] = [
        {"kind": "Pod", "name": "p", "uid": "earlier", "controller": True}
    ]
    bench.claim(made)
    bench.pod(pod("p", "c"))
    bench.run()
    assert bench.api.writes == []


def test_the_gate_is_lifted_when_all_claims_are_allocated() -> None:
    bench = Bench("node-a")
    bench.claim(claim("c"))
    bench.pod(pod("p", "c", schedulingGates=[{"name": FINALIZER}]))
    bench.run()
    assert bench.devices("c")
    assert bench.api.writes[-1] == "pods"
    assert bench.api.get(PODS, "p")["spec"]["schedulingGates"] == []


def test_a_pod_behind_the_gate_of_another_is_left_alone_until_that_is_lifted() -> None:
    bench = Bench("node-a")
    bench.claim(claim("c"))
    bench.pod(pod("p", "c", schedulingGates=[{"name": FINALIZER}, {"name": "quota"}]))
    bench.run()
    assert bench.api.writes == []
    bench.pod(pod("p", "c", schedulingGates=[{"name": FINALIZER}]))
    bench.run()
    assert bench.devices("c")


def test_a_pod_that_cannot_be_handled_does_not_keep_others_from_their_slices(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench("node-a")
    decide = Allocator.decide

    def failing(self: Allocator, problem: Problem, *more: Any) -> Decision | None:
        if problem.pod.key[1] == "poison":
            raise RuntimeError("never seen before")
        return decide(self, problem, *more)

    monkeypatch.setattr(Allocator, "decide", failing)
    for name in ("poison", "sound"):
        bench.claim(claim(name))
        bench.pod(pod(name, name))
    for _ in range(10):
        bench.run(seconds=1)
    assert bench.devices("sound")
    assert not bench.devices("poison")
    monkeypatch.undo()
    bench.run(seconds=31)
    assert bench.devices("poison")


def test_the_more_important_then_the_older_pod_is_served_first() -> None:
    bench = Bench("node-a")
    for name, priority, created in (
        ("young", 0, "2026-01-03"),
        ("old", 0, "2026-01-01"),
        ("vip", 5, "2026-01-09"),
    ):
        bench.claim(claim(name, request("r", "mig-4g.20gb")))
        body = pod(name, name, priority=priority)
        body["metadata"]["creationTimestamp"] = f"{created}T00:00:00Z"
        bench.pod(body)
    bench.run()
    assert [n for n in ("young", "old", "vip") if bench.devices(n)] == ["vip"]
    bench.change_claim("vip", allocation=None)
    bench.delete_pod("vip")
    bench.run(seconds=1)
    assert [n for n in ("young", "old") if bench.devices(n)] == ["old"]


def test_a_pod_that_does_not_fit_waits_with_a_reason_and_is_served_when_there_is_room() -> None:
    bench = Bench("node-a")
    for name in ("one", "two"):
        bench.claim(claim(name, request("r", "mig-7g.40gb")))
        bench.pod(pod(name, name))
    bench.run()
    assert bench.devices("one")
    assert bench.recorder.reasons("two") == ["WaitingForSlice", "WaitingForSlice"]
    bench.delete_pod("one")
    bench.run(seconds=1)
    bench.run(seconds=1)
    assert not bench.devices("one")
    assert bench.devices("two")


def test_a_pod_that_waits_costs_nothing_and_says_nothing_new() -> None:
    bench = Bench("node-a")
    bench.claim(claim("c", request("r", "mig-4g.20gb", count=2)))
    bench.pod(pod("p", "c"))
    bench.run()
    said = len(bench.recorder.events)
    for _ in range(5):
        bench.run(seconds=LOOK_AGAIN_SECONDS)
    assert bench.api.writes == ["pods/status"]
    assert len(bench.recorder.events) == said


@pytest.mark.parametrize("first", [True, False])
def test_an_allocation_that_is_taken_back_goes_to_another_node(first: bool) -> None:  # noqa: FBT001
    bench = Bench("node-a", "node-b")
    bench.claim(claim("c"))
    bench.pod(pod("p", "c"))
    bench.run()
    assert bench.node_of("c") == "node-a"
    if not first:  # the same a second time: now both nodes are out
        bench.change_claim("c", allocation=None)
        bench.run()
        assert bench.node_of("c") == "node-b"
        bench.change_claim("c", allocation=None)
        bench.run()
        assert bench.devices("c") == []
        assert "took an allocation there back" in bench.recorder.events[-1][3]
        bench.run(seconds=5.1)
        assert bench.devices("c")
        return
    bench.change_claim("c", allocation=None)
    bench.run()
    assert bench.node_of("c") == "node-b"
    assert "AllocationTakenBack" in bench.recorder.reasons("c")


def test_a_node_that_refuses_again_and_again_is_not_asked_in_a_loop() -> None:
    bench = Bench("node-a")
    bench.claim(claim("c"))
    bench.pod(pod("p", "c"))
    bench.run()
    allocations = 1
    for _ in range(600):
        if bench.devices("c"):
            bench.change_claim("c", allocation=None)
        before = len(bench.api.writes)
        bench.run(seconds=1)
        allocations += bench.api.writes[before:].count(STATUS)
        bench.cluster.set_node(node("node-a", labels={"changing": str(bench.time)}))
    assert 5 < allocations < 400


def test_an_unchanged_node_is_asked_ever_more_rarely() -> None:
    bench = Bench("node-a")
    bench.claim(claim("c"))
    bench.pod(pod("p", "c"))
    bench.run()
    bench.api.writes.clear()
    for _ in range(600):
        if bench.devices("c"):
            bench.change_claim("c", allocation=None)
        bench.run(seconds=1)
    # After 5 s, then 10, 20, 40, 80 and 160; the next would be after 300.
    assert bench.api.writes.count(STATUS) == 6


def test_all_claims_of_a_pod_move_when_one_is_taken_back() -> None:
    bench = Bench("node-a", "node-b")
    for name in ("one", "two"):
        bench.claim(claim(name))
    bench.pod(pod("p", "one", "two"))
    bench.run()
    assert bench.node_of("one") == bench.node_of("two") == "node-a"
    bench.change_claim("one", allocation=None)
    bench.run()
    assert bench.node_of("one") == bench.node_of("two") == "node-b"
    assert "AllocationTakenBack" in bench.recorder.reasons("one")
    assert "AllocationTakenBack" not in bench.recorder.reasons("two")


def test_a_reserved_claim_keeps_its_allocation_although_its_pod_is_unknown() -> None:
    bench = Bench("node-a")
    bench.claim(claim("c"))
    bench.pod(pod("p", "c"))
    bench.run()
    bench.remove_pod("p")
    bench.run(seconds=100)
    assert bench.devices("c")
    bench.end_reservations()
    bench.run()
    assert bench.devices("c") == []


def test_a_claim_that_somebody_uses_does_not_move() -> None:
    bench = Bench("node-a", "node-b")
    for name in ("one", "two"):
        bench.claim(claim(name))
    bench.pod(pod("p", "one", "two"))
    bench.run()
    consumers = [{"resource": "pods", "name": name, "uid": f"uid-{name}"} for name in ("p", "q")]
    bench.change_claim("two", reservedFor=consumers)
    bench.change_claim("one", allocation=None)
    bench.run()
    assert bench.node_of("two") == "node-a"
    assert bench.devices("one") == []


def test_two_pods_share_a_claim_that_is_allocated_once() -> None:
    bench = Bench("node-a")
    bench.claim(claim("c"))
    bench.pod(pod("p1", "c"))
    bench.pod(pod("p2", "c"))
    bench.run()
    assert bench.api.writes == ["resourceclaims", STATUS]
    bench.delete_pod("p1")
    bench.run(seconds=10)
    assert bench.devices("c")
    bench.delete_pod("p2")
    bench.run(seconds=10)
    assert bench.devices("c") == []
    assert bench.finalizers("c") == []


def test_an_ended_claim_keeps_its_place_until_the_node_shows_no_slice_of_it() -> None:
    bench = Bench("node-a")
    bench.claim(claim("c", request("r", "mig-3g.20gb")))
    bench.pod(pod("p", "c"))
    bench.run()
    start = int(bench.devices("c")[0].rpartition("-")[2])
    held = instance("3g.20gb", start, uid="uid-c")
    bench.cluster.set_mignode(mignode("node-a", gpu(0, instances=(held,))))
    bench.delete_pod("p")
    bench.run(seconds=100)
    assert bench.devices("c")
    bench.cluster.set_mignode(mignode("node-a"))
    bench.run()
    assert bench.devices("c") == []
    assert bench.finalizers("c") == []


@pytest.mark.parametrize("how", ["node gone", "slice gone"])
def test_a_deleted_claim_is_released(how: str) -> None:
    bench = Bench("node-a")
    bench.claim(claim("c"))
    bench.pod(pod("p", "c"))
    bench.run()
    held = instance("1g.5gb", 0, uid="uid-c", state="reclaiming")
    bench.cluster.set_mignode(mignode("node-a", gpu(0, instances=(held,))))
    obj = copy.deepcopy(bench.api.get(RESOURCE_CLAIMS, "c"))
    obj["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    bench.claim(obj)
    bench.delete_pod("p")
    bench.run(seconds=100)
    assert bench.finalizers("c") == [FINALIZER]
    if how == "node gone":
        bench.cluster.remove_node("node-a")
    else:
        bench.cluster.set_mignode(mignode("node-a"))
    bench.run()
    assert bench.finalizers("c") == []


def test_a_node_without_its_mignode_cannot_tell_and_the_claim_waits() -> None:
    bench = Bench("node-a")
    bench.claim(claim("c"))
    bench.pod(pod("p", "c"))
    bench.run()
    bench.cluster.remove_mignode("node-a")
    bench.delete_pod("p")
    bench.run(seconds=100)
    assert bench.devices("c")
    bench.cluster.set_mignode(mignode("node-a"))
    bench.run()
    assert bench.devices("c") == []


def test_a_pods_own_claim_is_left_to_be_deleted_with_it() -> None:
    bench = Bench("node-a")
    body = claim("c")
    body["metadata"]["ownerReferences"] = [
        {"kind": "Pod", "name": "p", "uid": "uid-p", "controller": True}
    ]
    bench.claim(body)
    bench.pod(pod("p", "c"))
    bench.run()
    bench.delete_pod("p")
    bench.run()
    assert bench.devices("c")
    bench.run(seconds=5.1)
    assert bench.devices("c") == []


def test_claims_that_are_not_ours_are_never_written() -> None:
    bench = Bench("node-a")
    bench.cluster.set_class(versioned(device_class("net", "device.driver == 'net.example.com'")))
    bench.claim(claim("foreign", request("r", "net")))
    bench.claim(claim("mixed", request("a"), request("b", "net")))
    for name in ("foreign", "mixed"):
        bench.pod(pod(name, name))
    bench.run()
    assert bench.api.writes == []
    assert bench.recorder.reasons("foreign") == []
    assert bench.recorder.reasons("mixed") == ["MixedDrivers", "MixedDrivers"]
    foreign = versioned(claim("other", request("r", "net")))
    foreign["status"] = {
        "allocation": {
            "devices": {
                "results": [
                    {"request": "r", "driver": "net.example.com", "pool": "x", "device": "y"}
                ]
            }
        }
    }
    bench.claim(foreign)
    bench.run(seconds=100)
    assert bench.api.writes == ["pods/status"]
    assert bench.condition("mixed")["reason"] == "MixedDrivers"


def test_a_claim_of_another_driver_does_not_keep_ours_from_its_slice() -> None:
    bench = Bench("node-a")
    bench.cluster.set_class(versioned(device_class("net", "device.driver == 'net.example.com'")))
    bench.claim(claim("foreign", request("r", "net")))
    bench.claim(claim("c"))
    bench.pod(pod("p", "foreign", "c"))
    bench.run()
    assert bench.devices("c")


def test_a_stale_write_is_tried_again_on_the_new_state() -> None:
    bench = Bench("node-a")
    stored = bench.claim(claim("c"))
    bench.api.put(RESOURCE_CLAIMS, stored)  # a change that was not watched yet
    bench.pod(pod("p", "c"))
    bench.run()
    assert bench.devices("c") == []
    bench.cluster.set_claim(bench.api.get(RESOURCE_CLAIMS, "c"))
    bench.run(seconds=1)
    assert bench.devices("c")


def test_an_old_state_that_arrives_late_is_ignored() -> None:
    bench = Bench("node-a")
    bench.claim(claim("c"))
    bench.pod(pod("p", "c"))
    bench.run()
    late = copy.deepcopy(bench.api.get(RESOURCE_CLAIMS, "c"))
    late["metadata"]["resourceVersion"] = str(int(late["metadata"]["resourceVersion"]) - 1)
    del late["status"]  # the answer to the finalizer, which the watch brings last
    bench.cluster.set_claim(late)
    bench.run()
    assert bench.recorder.reasons("c") == ["Allocated"]
    assert bench.cluster.claims["default", "c"].claim.allocation is not None


@pytest.mark.parametrize("written", [True, False])
@pytest.mark.parametrize(
    "error", [UnavailableError("no answer"), ConflictError("with itself", status=409)]
)
def test_a_write_of_unknown_outcome_keeps_its_place_until_the_truth_is_known(
    written: bool,  # noqa: FBT001
    error: KubeError,
) -> None:
    bench = Bench("node-a")
    bench.claim(claim("c", request("r", "mig-7g.40gb")))
    bench.pod(pod("p", "c"))
    silence = once(STATUS, error)
    if written:
        bench.api.lost = silence
    else:
        bench.api.refuse = silence
    bench.run()
    bench.claim(claim("d", request("r", "mig-7g.40gb")))
    bench.pod(pod("q", "d"))
    bench.run()
    assert bench.devices("d") == []
    if written:
        bench.cluster.set_claim(bench.api.get(RESOURCE_CLAIMS, "c"))
    bench.run(seconds=1)
    assert bench.devices("c") == ["gpu-0-mig-7g40gb-0-0"]
    assert bench.devices("d") == []


def test_a_pod_that_is_served_half_is_served_as_a_whole_elsewhere() -> None:
    bench = Bench("node-a", "node-b")
    for name in ("one", "two"):
        bench.claim(claim(name, request("r", "mig-3g.20gb")))
    bench.pod(pod("p", "one", "two"))
    bench.api.refuse = _second_status(ConflictError("somebody was faster", status=409))
    bench.run()
    assert bench.node_of("one") == "node-a"
    bench.api.refuse = lambda _: None
    bench.change_claim("two")
    taken = gpu(0, instances=(instance("3g.20gb", 0), instance("1g.5gb", 5)))
    bench.cluster.set_mignode(mignode("node-a", taken))
    bench.run(seconds=1)
    assert bench.node_of("one") == bench.node_of("two") == "node-b"


def _second_status(error: KubeError) -> Any:
    seen: list[str] = []

    def refuse(what: str) -> KubeError | None:
        seen.append(what)
        return error if what == STATUS and seen.count(STATUS) > 1 else None

    return refuse


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (
            InvalidError('requires resource="resourceclaims/binding"', status=422),
            "ClusterRole with the verb patch on resourceclaims/binding",
        ),
        (InvalidError("status.allocation: too long", status=422), "too long"),
        (ForbiddenError("cannot patch resourceclaims/status", status=403), "resourceclaims/status"),
    ],
)
def test_a_refused_write_says_what_is_missing_and_is_tried_ever_more_rarely(
    error: KubeError, told: str
) -> None:
    bench = Bench("node-a")
    attempts = []

    def refuse(what: str) -> KubeError | None:
        attempts.append(what)
        return error if what == STATUS else None

    bench.api.refuse = refuse
    bench.claim(claim("c"))
    bench.pod(pod("p", "c"))
    for _ in range(120):
        bench.run(seconds=1)
    assert attempts.count(STATUS) < 15
    assert any(r == "AllocationRefused" and told in m for _, _, r, m in bench.recorder.events)


def test_nothing_is_written_by_one_who_does_not_lead() -> None:
    bench = Bench("node-a")
    bench.claim(claim("c"))
    bench.pod(pod("p", "c"))
    bench.leads = False
    with pytest.raises(NotLeadingError):
        bench.run()
    assert bench.api.writes == []


def test_classes_follow_the_hardware_and_are_written_once() -> None:
    bench = Bench("node-a")
    assert {"mig.dra.dev", "gpu.dra.dev", "mig-1g.5gb", "mig-1g.5gb.me"} <= bench.classes()
    bench.cluster.set_mignode(mignode("node-a", gpu(0, instances=(instance("1g.5gb", 0),))))
    bench.run(seconds=100)
    assert bench.api.writes == []


def test_a_class_of_the_same_name_that_is_not_ours_is_left_alone_and_told() -> None:
    bench = Bench()
    mine = device_class("mig-1g.5gb", "device.driver == 'mig.dra.dev'")
    bench.cluster.set_class(versioned(mine))
    bench.cluster.set_node(node("node-a"))
    bench.cluster.set_mignode(mignode("node-a"))
    bench.run()
    assert "mig-1g.5gb" not in bench.classes()
    assert "mig-3g.20gb" in bench.classes()
    assert bench.recorder.reasons("mig-1g.5gb") == ["DeviceClassConflict"]


def test_classes_that_cannot_be_written_are_tried_again_later() -> None:
    bench = Bench()
    bench.api.refuse = once("deviceclasses", UnavailableError("no answer"))
    bench.cluster.set_node(node("node-a"))
    bench.cluster.set_mignode(mignode("node-a"))
    bench.run()
    assert "mig-1g.5gb" not in bench.classes()
    bench.run(seconds=1.1)
    assert "mig-1g.5gb" in bench.classes()


def test_a_mignode_that_cannot_be_read_is_as_good_as_none() -> None:
    bench = Bench("node-a", "node-b")
    broken = mignode("node-a")
    broken["status"]["gpus"][0]["name"] = "gpu-zero"
    bench.cluster.set_mignode(broken)
    bench.claim(claim("c"))
    bench.pod(pod("p", "c"))
    bench.run()
    assert bench.node_of("c") == "node-b"


def test_what_did_not_fit_one_pod_is_not_tried_for_its_equals_until_there_is_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench("node-a")
    bench.claim(claim("large", request("r", "mig-7g.40gb")))
    bench.pod(pod("large", "large"))
    bench.run()
    tried: list[str] = []
    decide = Allocator.decide

    def counted(self: Allocator, problem: Problem, *more: Any) -> Decision | None:
        tried.append(problem.pod.key[1])
        return decide(self, problem, *more)

    monkeypatch.setattr(Allocator, "decide", counted)
    for number in range(20):
        bench.claim(claim(f"c{number}"))
        bench.pod(pod(f"p{number}", f"c{number}"))
    bench.run()
    assert len(tried) == 1
    assert all("large" in m for _, about, _, m in bench.recorder.events if about.startswith("p"))
    bench.claim(claim("other", request("r", "mig-3g.20gb")))
    bench.pod(pod("other", "other"))
    bench.run()
    assert len(tried) == 2
    bench.delete_pod("large")
    bench.run(seconds=1)
    bench.run(seconds=1)
    served = [n for n in range(20) if bench.devices(f"c{n}")]
    assert len(served) + 4 * bool(bench.devices("other")) >= 7


def drained(node_name: str, *gpus: str) -> Obj:
    """A node with two GPUs of which some, or all where none is named, are drained."""
    body = mignode(node_name, gpu(0, node_name), gpu(1, node_name))
    spec = {**body["spec"], "drain": {"gpus": list(gpus), "reason": "driver 580"}}
    return {**body, "spec": spec}


def test_nothing_is_placed_on_a_drained_gpu() -> None:
    bench = Bench("node-a")
    bench.cluster.set_mignode(drained("node-a", "gpu-0"))
    for name in "abc":
        bench.claim(claim(name, request("r", "mig-3g.20gb")))
        bench.pod(pod(name, name))
    bench.run()
    placed = [d.partition("-mig-")[0] for name in "ab" for d in bench.devices(name)]
    assert placed == ["gpu-1", "gpu-1"]
    assert not bench.devices("c")
    assert "gpu-0 drained: driver 580" in bench.recorder.events[-1][3]


def test_a_resumed_node_serves_who_waits() -> None:
    bench = Bench("node-a")
    bench.cluster.set_mignode(drained("node-a"))
    bench.claim(claim("c"))
    bench.pod(pod("c", "c"))
    bench.run()
    assert not bench.devices("c")
    bench.cluster.set_mignode(mignode("node-a", gpu(0, "node-a"), gpu(1, "node-a")))
    bench.run()
    assert bench.devices("c")
