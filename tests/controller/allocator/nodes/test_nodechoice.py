"""Full or empty nodes first: by GPU memory, cpu and memory, per class or claim."""

from __future__ import annotations

from typing import Any

from controller.cluster.cluster import Cluster
from dra.common.resources import Obj
from tests.controller.helpers.deciding import decide
from tests.controller.helpers.objects import (
    allocated,
    claim,
    cluster,
    filled,
    gpu,
    mignode,
    node,
    opaque,
    pod,
    request,
    versioned,
)

NAMES = ("node-a", "node-b", "node-c")


def preferring(
    policy: str, *by: str, placement: str = "sws", requests: tuple[str, ...] = ()
) -> Obj:
    """A configuration that prefers nodes."""
    nodes = {"policy": policy, **({"by": list(by)} if by else {})}
    return opaque(placement, *requests, nodes=nodes)


def running(known: Cluster, name: str, *, cpu: str = "0", memory: str = "0") -> None:
    """A pod that runs on a node and has no GPU."""
    body = pod(f"on-{name}", nodeName=name)
    requests = {"cpu": cpu, "memory": memory}
    body["spec"]["containers"][0]["resources"]["requests"] = requests
    known.set_pod(versioned(body))


def chosen(known: Cluster, *claims: Obj, **spec: Any) -> str:
    decision = decide(known, *claims, **spec)
    return "" if decision is None else decision.node


def half_full() -> Cluster:
    """Nodes with 0, 4 and 2 of 8 slices taken."""
    known = cluster(*NAMES)
    for name, taken in zip(NAMES, (0, 4, 2), strict=True):
        known.set_mignode(mignode(name, filled(0, *range(taken), name=name)))
    return known


def one(policy: str, *by: str) -> Obj:
    return claim("c", config=[preferring(policy, *by)])


def test_nodes_that_differ_by_rounding_are_equally_full() -> None:
    known = cluster("node-a", "node-b")
    for name, cpu, memory in (("node-a", "800m", "6Gi"), ("node-b", "1600m", "3Gi")):
        known.set_node(node(name, cpu="8", memory="30Gi"))
        running(known, name, cpu=cpu, memory=memory)  # a tenth and a fifth; a fifth and a tenth
    for policy in ("binpack", "spread"):
        assert chosen(known, one(policy, "cpu", "memory")) == "node-a"
        assert chosen(known, one(policy, "memory", "cpu")) == "node-a"


def test_several_claims_of_a_pod_go_to_the_preferred_node_that_serves_them_all() -> None:
    known = half_full()
    config = [preferring("binpack", "gpu-memory")]
    large = claim("large", request("r", "mig-3g.20gb"), config=config)
    assert chosen(known, large) == "node-b"
    assert chosen(known, large, claim("more", request("r", "mig-2g.10gb"))) == "node-c"


def test_a_whole_gpu_that_is_given_out_counts_as_full_and_one_out_of_service_not_at_all() -> None:
    known = cluster("node-a", "node-b")
    broken = gpu(1, unavailable="XID 79")
    known.set_mignode(mignode("node-a", filled(0, 0, 1, 2, 3), broken))  # half of what is left
    free = gpu(1, "node-b", mig=False)
    known.set_mignode(mignode("node-b", filled(0, *range(5), name="node-b"), free))  # 5 of 16
    assert chosen(known, one("binpack", "gpu-memory")) == "node-a"
    held = versioned(claim("held", request("r", "gpu.dra.dev")))
    known.set_claim(versioned(allocated(held, "node-b", "gpu-1")))
    assert chosen(known, one("binpack", "gpu-memory")) == "node-b"  # 13 of 16
