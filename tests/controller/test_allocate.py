"""Which node, GPU and placement a pod's claims get, and what is said when there is none."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from controller.allocate import Allocator
from controller.cluster import Cluster
from controller.decision import Decision, Problem
from controller.explain import explain
from controller.unit import examine
from dra.classes import generated_classes
from dra.inventory import Allocator as Mode
from dra.pods import read_pod
from dra.reasons import Obstacle, Reason
from dra.wants import Reader
from tests.controller.objects import (
    DRIVER,
    allocated,
    claim,
    cluster,
    gpu,
    instance,
    inventory,
    mignode,
    node,
    pod,
    request,
    versioned,
    with_gpus,
)
from tests.dra.gpus import A100

Obj = dict[str, Any]
SAME_GPU = [{"matchAttribute": "mig.dra.dev/parentUUID"}]


def problem(known: Cluster, *claims: Obj, **spec: Any) -> Problem:
    """A pending pod that wants ``claims``; its classes are those that the hardware offers."""
    for body in generated_classes(DRIVER, [p.name for p in A100.profiles]):
        known.set_class(versioned(body))
    for body in claims:
        known.set_claim(versioned(body))
    body = versioned(pod("p", *(c["metadata"]["name"] for c in claims), **spec))
    known.set_pod(body)
    kinds = known.fleet.kinds
    found = examine(read_pod(body), known, Reader(DRIVER, kinds.selectors, known.classes))
    assert isinstance(found, Problem), found
    return found


def decide(known: Cluster, *claims: Obj, **spec: Any) -> Decision | None:
    found = problem(known, *claims, **spec)
    return Allocator(known.fleet, known.hosts).decide(found)


def devices(decision: Decision | None) -> list[str]:
    assert decision is not None
    return [p.device for p in decision.picks]


def why(known: Cluster, *claims: Obj, **spec: Any) -> Obstacle:
    found = problem(known, *claims, **spec)
    allocator = Allocator(known.fleet, known.hosts)
    assert allocator.decide(found) is None
    return explain(found, allocator, known.fleet)


def test_a_slice_is_allocated_from_the_pool_that_the_mignode_names() -> None:
    decision = decide(cluster("node-a"), claim("c"))
    assert decision is not None
    assert (decision.node, decision.pool) == ("node-a", "node-a-pool")
    (pick,) = decision.picks
    assert pick.gpu == "gpu-0"
    assert pick.profile == "1g.5gb"
    assert pick.placement is not None
    assert pick.device == f"gpu-0-mig-1g5gb-19-{pick.placement.start}"


def test_slices_go_where_they_cost_the_cluster_least_not_to_the_first_node() -> None:
    known = cluster("node-a", "node-b")
    known.set_mignode(mignode("node-b", gpu(0, "node-b", instances=(instance("1g.5gb", 6),))))
    assert decide(known, claim("c", request("r", "mig-3g.20gb"))).node == "node-b"  # type: ignore[union-attr]


def test_count_and_several_requests_of_several_claims_land_on_one_node() -> None:
    known = cluster("node-a", "node-b")
    known.set_mignode(mignode("node-a", gpu(0, instances=(instance("1g.5gb", 0),))))
    decision = decide(
        known,
        claim("one", request("a", "mig-2g.10gb", count=2)),
        claim("two", request("b", "mig-3g.20gb")),
    )
    assert decision is not None
    assert decision.node == "node-b"
    assert [p.request for p in decision.picks].count("a") == 2
    assert len(set(devices(decision))) == 3
    two = next(p.claim for p in decision.picks if p.claim.name == "two")
    assert [p.profile for p in decision.of(two)] == ["3g.20gb"]


def test_all_of_a_claim_on_one_gpu_is_found_when_asked_for() -> None:
    known = cluster("node-a")
    half = gpu(0, instances=(instance("1g.5gb", 0),))
    known.set_mignode(mignode("node-a", half, gpu(1), gpu(2)))
    wanted = [request("a", "mig-4g.20gb"), request("b", "mig-2g.10gb"), request("c", "mig-1g.5gb")]
    decision = decide(known, claim("c", *wanted, constraints=SAME_GPU))
    assert decision is not None
    assert len({p.gpu for p in decision.picks}) == 1
    blocked = [gpu(n, instances=(instance("1g.5gb", 0),)) for n in range(3)]
    known.set_mignode(mignode("node-a", *blocked))
    reason = why(known, claim("c", *wanted, constraints=SAME_GPU))
    assert "no room for 4g.20gb" in reason.message


def test_two_claims_may_each_have_a_gpu_of_their_own() -> None:
    known = cluster("node-a")
    known.set_mignode(mignode("node-a", gpu(0), gpu(1)))
    two = [request("a", "mig-3g.20gb"), request("b", "mig-3g.20gb")]
    decision = decide(
        known, claim("x", *two, constraints=SAME_GPU), claim("y", *two, constraints=SAME_GPU)
    )
    assert decision is not None
    per_claim = {c: {p.gpu for p in decision.picks if p.claim.name == c} for c in ("x", "y")}
    assert [len(g) for g in per_claim.values()] == [1, 1]
    assert per_claim["x"] != per_claim["y"]


def test_an_attribute_of_the_slice_can_be_matched_too() -> None:
    known = cluster("node-a")
    either = ["mig-1g.5gb", "mig-2g.10gb"]
    any_slice = "device.attributes['mig.dra.dev'].profile in ['1g.5gb', '2g.10gb']"
    body = claim(
        "c",
        request("a", either[1]),
        request("b", "mig.dra.dev", any_slice),
        constraints=[{"matchAttribute": "mig.dra.dev/profile"}],
    )
    assert {p.profile for p in decide(known, body).picks} == {"2g.10gb"}  # type: ignore[union-attr]


def test_gpus_that_share_a_root_are_told_from_those_of_an_equal_node_that_do_not() -> None:
    """Both nodes have two empty GPUs; on which they hang by one root only the GPUs can tell."""
    same = [{"matchAttribute": "resource.kubernetes.io/pcieRoot"}]
    wanted = claim("c", request("r", "mig-7g.40gb", count=2), constraints=same)
    roots = {"node-a": ("pci0000:00", "pci0000:80"), "node-b": ("pci0000:00", "pci0000:00")}
    for names in (("node-a", "node-b"), ("node-b", "node-a")):
        known = cluster("node-a", "node-b")
        for name, shared in zip(names, ("node-a", "node-b"), strict=True):
            gpus = (gpu(n, name, pcie_root=root) for n, root in enumerate(roots[shared]))
            known.set_mignode(mignode(name, *gpus))
        decision = decide(known, wanted)
        assert decision is not None
        assert decision.node == names[1]


def test_a_full_gpu_between_others_changes_neither_what_fits_nor_who_gives_it() -> None:
    full = instance("7g.40gb", 0)
    gpus = (gpu(0), gpu(1, instances=(full,)), gpu(2), gpu(3, instances=(full,)), gpu(4))
    known = with_gpus(*gpus)
    apart = [{"distinctAttribute": "mig.dra.dev/parentUUID"}]
    three = claim("c", request("r", "mig-7g.40gb", count=3), constraints=apart)
    assert devices(decide(known, three)) == [f"gpu-{n}-mig-7g40gb-0-0" for n in (0, 2, 4)]
    four = claim("d", request("r", "mig-7g.40gb", count=4), constraints=apart)
    assert decide(known, four) is None
    two = claim("e", request("r", "mig-1g.5gb", count=2), constraints=apart)
    assert [name[:5] for name in devices(decide(known, two))] == ["gpu-0", "gpu-2"]


def test_an_attribute_that_devices_lack_cannot_be_matched() -> None:
    body = claim("c", constraints=[{"matchAttribute": "mig.dra.dev/colour"}])
    reason = why(cluster("node-a"), body)
    assert "with the same mig.dra.dev/colour" in reason.message


def test_a_request_by_memory_gets_the_smallest_profile_that_has_it() -> None:
    enough = "device.capacity['mig.dra.dev'].memory.compareTo(quantity('12Gi')) >= 0"
    decision = decide(cluster("node-a"), claim("c", request("r", "mig.dra.dev", enough)))
    assert decision is not None
    assert decision.picks[0].profile == "3g.20gb"


def test_a_selector_can_name_one_gpu() -> None:
    known = cluster("node-a")
    known.set_mignode(mignode("node-a", gpu(0), gpu(1), gpu(2)))
    own = "device.attributes['mig.dra.dev'].parentUUID == 'GPU-node-a-1'"
    decision = decide(known, claim("c", request("r", "mig-1g.5gb", own)))
    assert decision is not None
    assert decision.picks[0].gpu == "gpu-1"


def test_a_whole_gpu_is_allocated_where_mig_is_off_and_only_once() -> None:
    known = cluster("node-a")
    known.set_mignode(mignode("node-a", gpu(0), gpu(1, mig=False)))
    whole = claim("c", request("r", "gpu.dra.dev"))
    assert devices(decide(known, whole)) == ["gpu-1"]
    known.set_claim(versioned(allocated(versioned(claim("old", request())), "node-a", "gpu-1")))
    reason = why(known, claim("d", request("r", "gpu.dra.dev")))
    assert "gpu-1 no room for gpu (blocked by claim default/old)" in reason.message


def test_what_claims_and_instances_hold_is_not_given_out_again() -> None:
    known = cluster("node-a")
    shown = gpu(0, instances=(instance("3g.20gb", 0, uid="uid-c-old"),))
    known.set_mignode(mignode("node-a", shown))
    assert devices(decide(known, claim("c", request("r", "mig-3g.20gb")))) == [
        "gpu-0-mig-3g20gb-9-4"
    ]
    held = allocated(versioned(claim("other", request())), "node-a", "gpu-0-mig-3g20gb-9-4")
    known.set_claim(versioned(held))
    reason = why(known, claim("d", request("r", "mig-3g.20gb")))
    assert reason.reason is Reason.WAITING
    assert "no room for 3g.20gb" in reason.message
    assert "(blocked by claims default/c-uid-c-old, default/other)" in reason.message


@pytest.mark.parametrize("state", ["foreign", "reclaiming", "orphan", "prepared", "preparing"])
def test_an_instance_blocks_in_whatever_state_it_is(state: str) -> None:
    known = cluster("node-a")
    known.set_mignode(mignode("node-a", gpu(0, instances=(instance("7g.40gb", 0, state=state),))))
    assert f"{state} instance at 0:8" in why(known, claim("c")).message


def test_a_claim_and_its_own_instance_count_once() -> None:
    known = cluster("node-a")
    known.set_mignode(mignode("node-a", gpu(0, instances=(instance("4g.20gb", 0, uid="uid-x"),))))
    held = allocated(versioned(claim("x", request())), "node-a", "gpu-0-mig-4g20gb-5-0")
    known.set_claim(versioned(held))
    decision = decide(known, claim("c", request("r", "mig-3g.20gb")))
    assert devices(decision) == ["gpu-0-mig-3g20gb-9-4"]


def test_claims_that_are_allocated_pin_the_node() -> None:
    known = cluster("node-a", "node-b")
    held = allocated(versioned(claim("old", request())), "node-b", "gpu-0-mig-1g5gb-19-0")
    decision = None
    known.set_claim(versioned(held))
    for body in generated_classes(DRIVER, ["1g.5gb"]):
        known.set_class(versioned(body))
    known.set_claim(versioned(claim("new")))
    body = versioned(pod("p", "old", "new"))
    known.set_pod(body)
    reader = Reader(DRIVER, known.fleet.kinds.selectors, known.classes)
    found = examine(read_pod(body), known, reader)
    assert isinstance(found, Problem)
    decision = Allocator(known.fleet, known.hosts).decide(found)
    assert decision is not None
    assert decision.node == "node-b"
    assert [p.claim.name for p in decision.picks] == ["new"]


def test_a_node_that_does_not_fit_the_pod_is_not_chosen_and_the_reason_told() -> None:
    known = cluster("node-a", "node-b")
    known.set_node(node("node-a", cpu="1"))
    decision = decide(known, claim("c"), cpu="4")
    assert decision is not None
    assert decision.node == "node-b"
    known.set_node(node("node-b", taints=[{"key": "x", "value": "y", "effect": "NoSchedule"}]))
    reason = why(known, claim("c"), cpu="4")
    assert "node-a: insufficient cpu" in reason.message
    assert "node-b: untolerated taint x=y:NoSchedule" in reason.message


def test_pods_that_our_allocations_send_to_a_node_count_there_before_they_are_bound() -> None:
    known = cluster("node-a", "node-b")
    known.set_node(node("node-a", cpu="1"))
    held = allocated(versioned(claim("old", request())), "node-a", "gpu-0-mig-1g5gb-19-6")
    known.set_claim(versioned(held))
    known.set_pod(versioned(pod("other", "old", cpu="900m")))
    decision = decide(known, claim("c"), cpu="200m")
    assert decision is not None
    assert decision.node == "node-b"


def test_nodes_that_kube_scheduler_allocates_are_not_ours() -> None:
    known = cluster("node-a")
    known.set_mignode(mignode("node-a", allocator=Mode.SCHEDULER))
    assert "no node has GPUs that this controller allocates" in why(known, claim("c")).message


def test_a_pod_that_is_bound_gets_its_slices_on_its_node_or_not_at_all() -> None:
    known = cluster("node-a", "node-b")
    known.set_node(node("node-b", cpu="0"))
    decision = decide(known, claim("c"), nodeName="node-b")
    assert decision is not None
    assert decision.node == "node-b"


def test_an_unknown_profile_is_told_with_those_that_exist() -> None:
    expression = "device.attributes['mig.dra.dev'].profile == '9g.99gb'"
    reason = why(cluster("node-a"), claim("c", request("r", "mig.dra.dev", expression)))
    assert reason.reason is Reason.NO_SUCH_PROFILE
    assert reason.message == (
        "request 'r': no node offers profile 9g.99gb; profiles are: "
        "1g.5gb, 1g.5gb+me, 1g.10gb, 2g.10gb, 3g.20gb, 4g.20gb, 7g.40gb"
    )


def test_a_selector_that_fails_everywhere_is_told_with_its_failure() -> None:
    expression = "device.attributes['mig.dra.dev'].flavour == 'sweet'"
    reason = why(cluster("node-a"), claim("c", request("r", "mig.dra.dev", expression)))
    assert reason.reason is Reason.BAD_SELECTOR
    assert "flavour" in reason.message


def test_more_than_the_gpu_can_hold_together_is_told_as_such() -> None:
    body = claim("c", request("a", "mig-4g.20gb", count=2))
    assert "no room for 2 x 4g.20gb together" in why(cluster("node-a"), body).message


def test_gpus_that_cannot_be_used_say_why() -> None:
    known = cluster("node-a")
    broken = gpu(0, unavailable="XID 79: fallen off the bus", reason="XID")
    pending = replace(gpu(1), mig_pending=False)
    known.set_mignode(mignode("node-a", broken, pending, gpu(2, mig=False)))
    known.set_node(node("node-b"))
    known.set_mignode(mignode("node-b", gpu(0, "node-b", instances=(instance("7g.40gb", 0),))))
    message = why(known, claim("c")).message
    assert "gpu-0 XID 79: fallen off the bus" in message
    assert "gpu-1 MIG mode change pending" in message
    assert "gpu-2 has no such device (MIG is off)" in message


def test_a_long_story_is_cut_short() -> None:
    names = [f"node-{n:03}" for n in range(40)]
    known = cluster(*names)
    for number, name in enumerate(names):
        known.set_node(node(name, taints=[{"key": f"t{number}", "effect": "NoSchedule"}]))
    message = why(known, claim("c")).message
    assert message.startswith("40 nodes - ")
    assert len(message) <= 1000


def test_of_many_nodes_a_few_are_told_gpu_by_gpu_and_the_others_in_short() -> None:
    names = [f"node-{n:02}" for n in range(40)]
    known = cluster(*names)
    full = instance("7g.40gb", 0, uid="other")
    half = instance("4g.20gb", 0, uid="other")
    for number, name in enumerate(names):
        held = (full if number % 2 else half,)
        known.set_mignode(mignode(name, gpu(0, name, instances=held), gpu(1, name, mig=False)))
    message = why(known, claim("c", request("r", "mig-7g.40gb"))).message
    assert message.startswith("40 nodes - 32 nodes: no room for 7g.40gb; has no such device (MIG")
    assert "; 8 nodes: gpu-0 no room for 7g.40gb (blocked by claim" in message
    together = request("r", "mig-4g.20gb", count=2)
    same = [{"matchAttribute": "mig.dra.dev/parentUUID"}]
    for name in names:
        known.set_mignode(mignode(name, gpu(0, name)))
    message = why(known, claim("c", together, constraints=same)).message
    assert message.startswith("40 nodes - 40 nodes: no room for 2 x 4g.20gb together with the same")


def test_a_driver_that_is_not_ready_gets_nothing() -> None:
    known = cluster("node-a")
    body = mignode("node-a")
    body["status"]["conditions"][0] |= {"status": "False", "message": "NVML is gone"}
    known.set_mignode(versioned(body))
    assert "driver not ready: NVML is gone" in why(known, claim("c")).message
    assert inventory("node-a").ready
