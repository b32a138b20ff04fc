"""Whoever waits is told the true blocker: constructed situations, by event and condition."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from dra.gpu.inventory import Inventory
from dra.gpu.mignode import to_mignode
from tests.controller.helpers.bench import Bench
from tests.controller.helpers.objects import (
    claim,
    gpu,
    instance,
    inventory,
    mignode,
    node,
    pod,
    request,
    versioned,
)

SMALL = [request("r", "mig-1g.5gb")]
LARGE = [request("r", "mig-7g.40gb")]
HUGE = "device.capacity['mig.dra.dev'].memory.compareTo(quantity('64Gi')) >= 0"
TAINT = {"key": "maintenance", "value": "now", "effect": "NoSchedule"}

Situation = Callable[[], Bench]


def has(*gpus: Any, ready: bool = True, **fields: Any) -> Situation:
    """One node with these GPUs."""

    def build() -> Bench:
        bench = Bench("a")
        found: Inventory = replace(inventory("a", *gpus), ready=ready, **fields)
        bench.cluster.set_mignode(versioned(to_mignode(found)))
        return bench

    return build


def on_node(**node_fields: Any) -> Situation:
    def build() -> Bench:
        bench = Bench("a")
        bench.cluster.set_node(node("a", **node_fields))
        return bench

    return build


def nowhere() -> Bench:
    bench = Bench("a")
    bench.cluster.remove_mignode("a")
    return bench


def unready() -> Bench:
    bench = Bench("a")
    obj = node("a")
    obj["status"]["conditions"] = [{"type": "Ready", "status": "Unknown"}]
    obj["spec"]["taints"] = [{"key": "node.kubernetes.io/unreachable", "effect": "NoSchedule"}]
    bench.cluster.set_node(obj)
    return bench


def held(*, nodes: tuple[str, ...] = ("a",), profile: str = "mig-7g.40gb") -> Situation:
    """A claim of another pod holds the only GPU of every node."""

    def build() -> Bench:
        bench = Bench(*nodes)
        for name in nodes:
            bench.ask(f"holder-{name}", f"big-{name}", request("r", profile))
        return bench

    return build


def beside_one_without_mig() -> Bench:
    bench = held()()
    bench.cluster.set_node(node("b"))
    bench.cluster.set_mignode(mignode("b", gpu(node="b", mig=False)))
    return bench


def taken_back() -> Bench:
    """The scheduler does not want the pod on the only node."""
    bench = Bench("a")
    bench.serve("p", "c")
    assert bench.devices("c")
    bench.change_claim("c", allocation=None)
    return bench


RECLAIMING = structs.replace(
    instance("7g.40gb", 0, uid="gone", state="reclaiming"), message="in use by pid 4711"
)

FOREIGN = structs.replace(
    instance("7g.40gb", 0, state="foreign"), message="pod of-others/x (nvidia.com/mig-7g.40gb)"
)
"""Instance whose pod is of another namespace, which the tenant that waits is not told."""

SITUATIONS: dict[str, tuple[Situation, list[Any], dict[str, Any], list[str]]] = {
    "a claim": (
        held(),
        SMALL,
        {},
        ["WaitingForSlice", "a: gpu-0 no room for 1g.5gb (blocked by claim default/big-a)"],
    ),
    "an instance that nobody claims": (
        has(gpu(node="a", instances=(FOREIGN,))),
        SMALL,
        {},
        ["WaitingForSlice", "gpu-0 no room for 1g.5gb (blocked by foreign instance at 0:8)"],
    ),
    "a slice that cannot go": (
        has(gpu(node="a", instances=(RECLAIMING,))),
        SMALL,
        {},
        ["WaitingForSlice", "default/c-gone (reclaiming: in use by pid 4711)"],
    ),
    "a claim that is gone and whose slice is not yet": (
        has(gpu(node="a", instances=(instance("7g.40gb", 0, uid="gone"),))),
        SMALL,
        {},
        ["WaitingForSlice", "default/c-gone (ended, its slice is about to go)"],
    ),
    "no profile that large": (
        lambda: Bench("a"),
        [request("r", "mig.dra.dev", HUGE)],
        {},
        ["NoSuchProfile", "the largest is 7g.40gb with 40192Mi of memory"],
    ),
    "MIG off": (
        has(gpu(node="a", mig=False)),
        [request("r", "mig.dra.dev")],
        {},
        ["MIGDisabled", "no GPU is in MIG mode"],
    ),
    "MIG off on one node, no room on the other": (
        beside_one_without_mig,
        SMALL,
        {},
        ["2 nodes", "default/big-a", "b: gpu-0 has no such device (MIG is off)"],
    ),
    "a change of MIG mode": (
        has(replace(gpu(node="a"), mig_pending=False)),
        SMALL,
        {},
        ["WaitingForSlice", "a: gpu-0 MIG mode change pending"],
    ),
    "a GPU that is ill": (
        has(gpu(node="a", unavailable="XID 79: fallen off the bus; reset the GPU")),
        SMALL,
        {},
        ["WaitingForSlice", "a: gpu-0 XID 79: fallen off the bus; reset the GPU"],
    ),
    "a plugin that is not ready": (
        has(gpu(node="a"), ready=False, message="NVML is gone"),
        SMALL,
        {},
        ["WaitingForSlice", "a: gpu-0 driver not ready: NVML is gone"],
    ),
    "a taint": (
        on_node(taints=[TAINT]),
        SMALL,
        {},
        ["WaitingForSlice", "a: untolerated taint maintenance=now:NoSchedule"],
    ),
    "a cordon": (on_node(unschedulable=True), SMALL, {}, ["a: node unschedulable"]),
    "a node that is down": (
        unready,
        SMALL,
        {},
        ["WaitingForSlice", "a: node not ready: untolerated taint node.kubernetes.io/unreachable"],
    ),
    "too little CPU": (on_node(cpu="1"), SMALL, {"cpu": "2"}, ["a: insufficient cpu"]),
    "the node selector": (
        lambda: Bench("a"),
        SMALL,
        {"nodeSelector": {"zone": "two"}},
        ["WaitingForSlice", "a: nodeSelector zone=two does not match"],
    ),
    "slices that fit one by one only": (
        lambda: Bench("a"),
        [request("x", "mig-4g.20gb"), request("y", "mig-7g.40gb")],
        {},
        ["no room for 1 x 4g.20gb, 1 x 7g.40gb together"],
    ),
    "more of a slice than any node has": (
        lambda: Bench("a"),
        [request("x", "mig-4g.20gb"), request("y", "mig-4g.20gb")],
        {},
        ["UnsupportedRequest", "2 x 4g.20gb can never be served"],
    ),
    "kube-scheduler": (taken_back, [], {}, ["WaitingForSlice", "a: kube-scheduler took"]),
    "nobody who has GPUs": (nowhere, SMALL, {}, ["there is no MigNode"]),
}


@pytest.mark.parametrize("who", SITUATIONS)
def test_the_blocker_is_named(who: str) -> None:
    situation, requests, spec, expected = SITUATIONS[who]
    bench = situation()
    bench.run()
    if requests:
        bench.serve("p", "c", *requests, **spec)
    bench.run(seconds=2.0)
    told = bench.condition("p")
    found = f"{told['reason']}: {told['message']}"
    assert [text for text in expected if text not in found] == [], found
    for name in ("p", "c"):
        events = [f"{r}: {m}" for _, about, r, m in bench.recorder.events if about == name]
        assert found in events
    assert len(told["message"]) < 200, "short"


def test_claims_of_other_namespaces_are_counted_and_not_named() -> None:
    bench = Bench("node-a")
    held = []
    for start in range(7):
        known = instance("1g.5gb", start, uid=f"u{start}")
        assert known.claim is not None
        namespace = "default" if start == 6 else "secret"
        held.append(structs.replace(known, claim=structs.replace(known.claim, namespace=namespace)))
    bench.cluster.set_mignode(mignode("node-a", gpu(0, instances=tuple(held))))
    bench.serve("p", "c", *LARGE)
    (message, *_) = [m for kind, *_, m in bench.recorder.events if kind == "Pod"]
    assert "secret" not in message
    assert "blocked by claim default/c-u6" in message
    assert "and 6 claims of other namespaces" in message
    assert all("c-u0" not in m for *_, m in bench.recorder.events)


def test_what_was_told_to_one_namespace_is_not_told_to_another() -> None:
    bench = Bench("node-a")
    held = instance("7g.40gb", 0, uid="mine")
    bench.cluster.set_mignode(mignode("node-a", gpu(0, instances=(held,))))
    for namespace in ("default", "other"):
        for body, keep in ((claim(namespace), bench.claim), (pod(namespace, namespace), bench.pod)):
            keep({**body, "metadata": {**body["metadata"], "namespace": namespace}})
    bench.run()
    messages = {name: m for _, name, _, m in bench.recorder.events}
    assert "c-mine" in messages["default"]
    assert "c-mine" not in messages["other"]
    assert "1 claim of other namespaces" in messages["other"]
