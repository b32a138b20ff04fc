"""Full or empty nodes first: by GPU memory, cpu and memory, per class or claim."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from api.config import NO_PREFERENCE
from controller.cluster.cluster import Cluster
from dra.allocator.allocate import Allocator
from dra.allocator.problem import Problem
from dra.claims.wants import Want
from dra.common.resources import Obj
from dra.gpu.inventory import Gpu
from tests.controller.helpers.deciding import decide, problem
from tests.controller.helpers.objects import (
    DRIVER,
    allocated,
    claim,
    cluster,
    device_class,
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
EVERYTHING = ("gpu-memory", "cpu", "memory")


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


def test_several_resources_count_by_their_mean() -> None:
    known = half_full()
    running(known, "node-a", cpu="7", memory="28Gi")  # 0, 7/8, 7/8; node-b has 1/2, 0, 0
    assert chosen(known, one("binpack")) == "node-a"
    assert chosen(known, one("binpack", "gpu-memory", "cpu")) == "node-a"
    assert chosen(known, one("binpack", "gpu-memory")) == "node-b"
    assert chosen(known, one("spread")) == "node-c"


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


def test_the_class_may_say_it_for_its_claims_and_a_claim_may_take_it_back() -> None:
    known = half_full()
    expression = f"device.driver == '{DRIVER}' && device.attributes['{DRIVER}'].profile == '1g.5gb'"
    body = device_class("emptiest", expression, config=[preferring("spread", "gpu-memory")])
    known.set_class(versioned(body))
    assert chosen(known, claim("c", request("r", "emptiest"))) == "node-a"
    plain = chosen(known, claim("plain"))
    assert plain != "node-a"
    own = [opaque("sws", nodes={"policy": "none"})]
    assert chosen(known, claim("d", request("r", "emptiest"), config=own)) == plain


def test_a_pod_that_nobody_charged_yet_and_that_asks_for_nothing_is_served() -> None:
    known = half_full()
    found = problem(known, one("binpack"))
    stranger = replace(found.pod, key=("elsewhere", "stranger"), needs=type(found.pod.needs)())
    decision = Allocator(known.fleet, known.hosts).decide(replace(found, pod=stranger))
    assert decision is not None
    assert decision.node == "node-b"


def test_a_pods_own_charge_does_not_make_a_node_full() -> None:
    known = cluster("node-a", "node-b")
    running(known, "node-a", cpu="1")
    found = problem(known, one("binpack", "cpu"))
    own = replace(found.pod.needs, requests={"cpu": 4000})
    known.hosts.place(replace(found.pod, needs=own), "node-b")
    decision = Allocator(known.fleet, known.hosts).decide(found)
    assert decision is not None
    assert decision.node == "node-a"


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    names = [f"node-{i}" for i in range(draw(st.integers(1, 4)))]
    known = cluster(*names)
    for name in names:
        known.set_mignode(mignode(name, *(draw(gpus(i, name)) for i in range(2))))
        size = draw(st.sampled_from(["1", "2", "8"]))
        known.set_node(node(name, cpu=size, memory=f"{size}Gi"))
        part = draw(st.sampled_from(["0", "500m", "1"]))
        running(known, name, cpu=part, memory=draw(st.sampled_from(["0", "1Gi"])))
    return known


@st.composite
def gpus(draw: st.DrawFn, minor: int, name: str) -> Gpu:
    return filled(minor, *sorted(draw(st.sets(st.integers(0, 6)))), name=name)


def measured(known: Cluster, name: str, by: tuple[str, ...]) -> float:
    """How full a node is, counted from its objects anew."""
    facts, gpus = known.hosts.facts[name], known.fleet.nodes[name].gpus
    pods = [p for p in known.pods.values() if p.node == name]
    shares = {"gpu-memory": sum(len(s.gpu.instances) for s in gpus) / (8 * len(gpus))}
    for resource in ("cpu", "memory"):
        wanted = sum(p.needs.requests.get(resource, 0) for p in pods)
        shares[resource] = wanted / facts.allocatable[resource]
    return sum(shares[r] for r in by) / len(by)


def indifferent(alternatives: tuple[Want, ...]) -> tuple[Want, ...]:
    return tuple(replace(want, nodes=NO_PREFERENCE) for want in alternatives)


def only(found: Problem, names: set[str], known: Cluster) -> Problem:
    """``found`` without its preference, and with these nodes alone."""
    claims = tuple(replace(c, choices=tuple(map(indifferent, c.choices))) for c in found.claims)
    left_out = {n: "left out" for n in known.fleet.nodes if n not in names}
    return replace(found, claims=claims, excluded=left_out)


@settings(max_examples=40, deadline=None)
@given(
    known=clusters(),
    policy=st.sampled_from(["binpack", "spread"]),
    placement=st.sampled_from(["sws", "best-fit", "spread"]),
    by=st.lists(st.sampled_from(EVERYTHING), min_size=1, unique=True),
    requests=st.lists(
        st.sampled_from(["mig-1g.5gb", "mig-2g.10gb", "mig-3g.20gb"]), min_size=1, max_size=2
    ),
)
def test_it_is_what_the_placement_policy_decides_on_the_best_nodes_that_would_do(
    known: Cluster, policy: str, placement: str, by: list[str], requests: list[str]
) -> None:
    wanted = [request(f"r{i}", name) for i, name in enumerate(requests)]
    config = [preferring(policy, *by, placement=placement)]
    found = problem(known, claim("c", *wanted, config=config))
    allocator = Allocator(known.fleet, known.hosts)
    would_do = {n for n in known.fleet.nodes if allocator.decide(only(found, {n}, known))}
    full = {n: measured(known, n, tuple(by)) for n in would_do}
    wished = (max if policy == "binpack" else min)(full.values(), default=0.0)
    best = {n for n in would_do if full[n] == pytest.approx(wished)}
    assert allocator.decide(found) == allocator.decide(only(found, best, known))
