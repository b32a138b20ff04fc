"""Whoever waits is told the true blocker: constructed situations, by event and condition."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from dra.inventory import Inventory
from dra.mignode import to_mignode
from tests.controller.bench import Bench
from tests.controller.objects import (
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
SAME_GPU = [{"matchAttribute": "mig.dra.dev/parentUUID"}]

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
    bench.cluster.set_node(obj)
    return bench


def held(*, nodes: tuple[str, ...] = ("a",), profile: str = "mig-7g.40gb") -> Situation:
    """A claim of another pod holds the only GPU of every node."""

    def build() -> Bench:
        bench = Bench(*nodes)
        for name in nodes:
            bench.claim(claim(f"big-{name}", request("r", profile)))
            bench.pod(pod(f"holder-{name}", f"big-{name}"))
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
    bench.claim(claim("c"))
    bench.pod(pod("p", "c"))
    bench.run()
    assert bench.devices("c")
    bench.change_claim("c", allocation=None)
    return bench


def test_claims_of_other_namespaces_are_counted_and_not_named() -> None:
    bench = Bench("node-a")
    held = []
    for start in range(7):
        known = instance("1g.5gb", start, uid=f"u{start}")
        assert known.claim is not None
        namespace = "default" if start == 6 else "secret"
        held.append(replace(known, claim=replace(known.claim, namespace=namespace)))
    bench.cluster.set_mignode(mignode("node-a", gpu(0, instances=tuple(held))))
    bench.claim(claim("c", *LARGE))
    bench.pod(pod("p", "c"))
    bench.run()
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
