"""Everything that a claim can ask for beyond a number of devices."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.cluster import Cluster
from dra.alternatives import MAX_CHOICES, choices
from dra.classes import ROUND_SIZES, generated_classes, looks_ours
from dra.geometry import Geometry, Occupant, Placement, Profile
from dra.inventory import Gpu, Instance
from dra.kube.resources import RESOURCE_CLAIMS
from dra.reasons import Reason
from sim.nvml.products import load_product, product_names
from tests.controller.bench import Bench
from tests.controller.objects import (
    DRIVER,
    claim,
    cluster,
    device_class,
    first_available,
    gpu,
    instance,
    mignode,
    pod,
    request,
    versioned,
)
from tests.controller.test_allocate import decide, devices, problem, why
from tests.dra.gpus import A100, profile

Obj = dict[str, Any]
APART = {"distinctAttribute": "mig.dra.dev/parentUUID"}
ALL = {"allocationMode": "All"}


def filled(minor: int, *starts: int, name: str = "node-a") -> Gpu:
    """An A100 with 1g.5gb instances at some memory slices."""
    return gpu(minor, name, instances=tuple(instance("1g.5gb", s) for s in starts))


def with_gpus(*gpus: Gpu, name: str = "node-a") -> Cluster:
    known = cluster(name)
    known.set_mignode(mignode(name, *gpus))
    return known


def opaque(policy: str, *requests: str) -> Obj:
    parameters = {
        "apiVersion": "mig.dra.dev/v1alpha1",
        "kind": "MigDeviceConfig",
        "placement": {"policy": policy},
    }
    found: Obj = {"opaque": {"driver": DRIVER, "parameters": parameters}}
    return found | ({"requests": list(requests)} if requests else {})


# -- policies


def test_claims_of_one_pod_are_each_placed_by_their_own_policy() -> None:
    """One goes to the fullest GPU, the other to the emptiest, whichever comes first."""
    for order in (("pack", "part"), ("part", "pack")):
        known = with_gpus(gpu(0), filled(1, 0, 1, 2, 3), filled(2, 0, 1))
        claims = {
            "pack": claim("pack", config=[opaque("best-fit")]),
            "part": claim("part", config=[opaque("spread")]),
        }
        decision = decide(known, *(claims[name] for name in order))
        assert decision is not None
        assert {p.claim.name: p.gpu for p in decision.picks} == {"pack": "gpu-1", "part": "gpu-0"}


def test_requests_of_one_claim_may_have_policies_of_their_own() -> None:
    known = with_gpus(gpu(0), filled(1, 0, 1, 2, 3))
    both = claim(
        "c", request("a"), request("b"), config=[opaque("spread", "a"), opaque("best-fit", "b")]
    )
    decision = decide(known, both)
    assert decision is not None
    assert {p.request: p.gpu for p in decision.picks} == {"a": "gpu-0", "b": "gpu-1"}


def test_the_policy_of_a_class_decides_for_its_claims() -> None:
    known = with_gpus(gpu(0), filled(1, 0, 1, 2, 3))
    expression = f"device.attributes['{DRIVER}'].profile == '1g.5gb'"
    for policy, expected in (("spread", "gpu-0"), ("best-fit", "gpu-1")):
        body = device_class(policy, f"device.driver == '{DRIVER}' && {expression}")
        body["spec"]["config"] = [opaque(policy)]
        known.set_class(versioned(body))
        decision = decide(known, claim(f"c-{policy}", request("r", policy)))
        assert decision is not None
        assert decision.picks[0].gpu == expected


# -- allocationMode All


def test_all_whole_gpus_of_a_node_are_given_together_or_not_at_all() -> None:
    known = with_gpus(gpu(0, mig=False), gpu(1, mig=False), gpu(2))
    everything = claim("c", request("r", "gpu.dra.dev", **ALL))
    assert sorted(devices(decide(known, everything))) == ["gpu-0", "gpu-1"]
    one = versioned(claim("one", request("r", "gpu.dra.dev")))
    decision = decide(known, one)
    assert decision is not None
    known = with_gpus(gpu(0, mig=False), gpu(1, mig=False, unavailable="sick"))
    assert "gpu-1 sick" in why(known, everything).message


def test_all_goes_to_a_node_where_everything_is_free() -> None:
    known = cluster("node-a", "node-b")
    known.set_mignode(mignode("node-a", gpu(0, mig=False), gpu(1, mig=False, unavailable="sick")))
    known.set_mignode(mignode("node-b", gpu(0, "node-b", mig=False), gpu(1, "node-b", mig=False)))
    decision = decide(known, claim("c", request("r", "gpu.dra.dev", **ALL)))
    assert decision is not None
    assert decision.node == "node-b"
    assert len(decision.picks) == 2


def test_all_slices_of_one_profile_are_every_placement_of_every_gpu() -> None:
    asked = claim("c", request("r", "mig-2g.10gb", **ALL))
    found = devices(decide(with_gpus(gpu(0), gpu(1)), asked))
    starts = (0, 2, 4)
    assert sorted(found) == [f"gpu-{n}-mig-2g10gb-14-{s}" for n in (0, 1) for s in starts]
    assert len(devices(decide(with_gpus(gpu(0), filled(1, 6)), asked))) == 6


def test_all_slices_of_one_profile_fail_when_one_is_taken() -> None:
    asked = claim("c", request("r", "mig-2g.10gb", **ALL))
    found = why(with_gpus(gpu(0), filled(1, 2)), asked)
    assert found.reason is Reason.WAITING
    assert "all x 2g.10gb" in found.message


def test_all_of_slices_that_overlap_is_refused_with_the_remedy() -> None:
    found = why(with_gpus(gpu(0)), claim("c", request("r", "mig.dra.dev", **ALL)))
    assert found.reason is Reason.UNSUPPORTED
    for told in ("'r'", "overlap", "mig-1g.5gb", "gpu.dra.dev", "count"):
        assert told in found.message


def test_all_of_more_than_a_claim_holds_is_refused_with_the_numbers() -> None:
    found = why(with_gpus(*(gpu(n) for n in range(5))), claim("c", request("r", **ALL)))
    assert found.reason is Reason.UNSUPPORTED
    assert "35 devices" in found.message
    assert "32" in found.message


# -- firstAvailable


BIG_OR_SMALL = first_available("r", ("big", "mig-3g.20gb", {}), ("small", "mig-1g.5gb", {}))


def test_the_first_alternative_is_taken_wherever_in_the_cluster_it_fits() -> None:
    known = cluster("node-a", "node-b")
    known.set_mignode(mignode("node-a", filled(0, 0, 4)))
    decision = decide(known, claim("c", BIG_OR_SMALL))
    assert decision is not None
    assert decision.node == "node-b"
    assert [(p.request, p.profile) for p in decision.picks] == [("r/big", "3g.20gb")]


def test_a_later_alternative_is_taken_when_no_earlier_one_fits() -> None:
    decision = decide(with_gpus(filled(0, 0, 4)), claim("c", BIG_OR_SMALL))
    assert decision is not None
    assert [(p.request, p.profile) for p in decision.picks] == [("r/small", "1g.5gb")]


def test_an_alternative_may_ask_for_several_devices_and_is_bound_by_constraints() -> None:
    asked = first_available("r", ("one", "mig-7g.40gb", {}), ("two", "mig-3g.20gb", {"count": 2}))
    decision = decide(with_gpus(filled(0, 0), filled(1, 0)), claim("c", asked))
    assert decision is not None
    assert [p.request for p in decision.picks] == ["r/two", "r/two"]
    same = [{"matchAttribute": "mig.dra.dev/parentUUID", "requests": ["r/two"]}]
    found = why(with_gpus(filled(0, 0), filled(1, 0)), claim("c", asked, constraints=same))
    assert "no other alternative fits either" in found.message


def test_alternatives_of_requests_that_fit_only_together_are_found() -> None:
    other = first_available("s", ("big", "mig-4g.20gb", {}), ("small", "mig-2g.10gb", {}))
    decision = decide(with_gpus(filled(0, 6)), claim("c", BIG_OR_SMALL, other))
    assert decision is not None
    assert {p.request for p in decision.picks} in ({"r/big", "s/small"}, {"r/small", "s/big"})


def test_an_alternative_that_no_node_has_does_not_hide_why_another_waits() -> None:
    known = with_gpus(filled(0, 0, 4))
    strange = "device.attributes['mig.dra.dev'].profile == '9g.1gb'"
    asked = first_available(
        "r",
        ("strange", "mig.dra.dev", {"selectors": [{"cel": {"expression": strange}}]}),
        ("big", "mig-7g.40gb", {}),
    )
    found = why(known, claim("c", asked))
    assert found.reason is Reason.WAITING
    assert "no room for 7g.40gb" in found.message


@pytest.mark.parametrize("sizes", [(3,), (2, 3), (8, 8, 8), (8, 8, 8, 8)])
def test_choices_come_by_the_sum_of_their_ranks_each_once(sizes: tuple[int, ...]) -> None:
    requests = [
        first_available(f"r{i}", *((f"s{n}", "mig-1g.5gb", {}) for n in range(size)))
        for i, size in enumerate(sizes)
    ]
    found = problem(cluster("node-a"), claim("c", *requests)).claims
    ranks = [
        tuple(int(w.request.rpartition("/s")[2]) for w in chosen.wants)
        for (chosen,) in choices(found)
    ]
    everything = sorted(product(*(range(s) for s in sizes)), key=lambda r: (sum(r), r))
    assert ranks == everything[:MAX_CHOICES]


def test_the_allocation_names_the_subrequest_and_carries_what_belongs_to_it() -> None:
    bench = Bench("node-a")
    toleration = {"key": "example.com/hot", "operator": "Exists"}
    asked = first_available(
        "r",
        ("big", "mig-9g.90gb", {}),
        ("small", "mig-1g.5gb", {"tolerations": [toleration]}),
    )
    expression = f"device.driver == '{DRIVER}' && false"
    none = versioned(device_class("mig-9g.90gb", expression, config=[opaque("mfi")]))
    bench.cluster.set_class(none)
    config = [opaque("best-fit", "r/small"), opaque("spread", "r/big")]
    bench.claim(claim("c", asked, config=config))
    bench.pod(pod("p", "c"))
    bench.run()
    allocation = bench.api.get(RESOURCE_CLAIMS, "c")["status"]["allocation"]
    (result,) = allocation["devices"]["results"]
    assert result["request"] == "r/small"
    assert result["tolerations"] == [toleration]
    assert [c["requests"] for c in allocation["devices"]["config"]] == [["r/small"]]


# -- distinctAttribute


def test_slices_on_different_gpus_are_found_when_asked_for() -> None:
    asked = claim("c", request("r", count=2), constraints=[APART])
    decision = decide(with_gpus(gpu(0), filled(1, 0, 1, 2)), asked)
    assert decision is not None
    assert {p.gpu for p in decision.picks} == {"gpu-0", "gpu-1"}
    found = why(with_gpus(gpu(0)), asked)
    assert "with different mig.dra.dev/parentUUID" in found.message


def test_two_constraints_hold_together() -> None:
    """Pairs on one GPU each, and the pairs on different ones."""
    names = ("a", "b", "c", "d")
    constraints = [
        {"matchAttribute": "mig.dra.dev/parentUUID", "requests": ["a", "b"]},
        {"matchAttribute": "mig.dra.dev/parentUUID", "requests": ["c", "d"]},
        {**APART, "requests": ["b", "c"]},
    ]
    asked = claim("c", *(request(n, "mig-2g.10gb") for n in names), constraints=constraints)
    decision = decide(with_gpus(gpu(0), gpu(1)), asked)
    assert decision is not None
    on = {p.request: p.gpu for p in decision.picks}
    assert on["a"] == on["b"] != on["c"] == on["d"]


def test_a_device_without_the_attribute_satisfies_no_constraint() -> None:
    for kind in ("matchAttribute", "distinctAttribute"):
        asked = claim("c", request("r"), constraints=[{kind: "mig.dra.dev/colour"}])
        assert decide(with_gpus(gpu(0)), asked) is None


PROFILES = ("1g.5gb", "2g.10gb", "3g.20gb", "4g.20gb")
ATTRIBUTES = ("parentUUID", "profile", "type")


@st.composite
def gpus(draw: st.DrawFn) -> list[Gpu]:
    found = []
    for minor in range(draw(st.integers(1, 3))):
        starts = draw(st.lists(st.integers(0, 6), max_size=5, unique=True))
        found.append(filled(minor, *starts))
    return found


def fits_apart(gpus: list[Gpu], wanted: list[tuple[str, bool]], attributes: list[str]) -> bool:
    """Whether one may choose devices one after the other; the plainest way to find out."""

    def values(at: Gpu, profile: Profile) -> tuple[str, ...]:
        known = {"parentUUID": at.uuid, "profile": profile.name, "type": "mig"}
        return tuple(f"{a}={known[a]}" for a in attributes)

    def rest(number: int, held: dict[int, list[Occupant]], used: frozenset[str]) -> bool:
        if number == len(wanted):
            return True
        name, bound = wanted[number]
        profile = A100.by_name(name)
        assert profile is not None
        for at in gpus:
            here = held[at.minor]
            marks = frozenset(values(at, profile)) if bound else frozenset[str]()
            if marks & used:
                continue
            for placement in A100.free_placements(A100.usage(here), profile):
                more = [*here, Occupant(placement, profile.id)]
                if rest(number + 1, {**held, at.minor: more}, used | marks):
                    return True
        return False

    start = {g.minor: [i.occupant for i in g.instances] for g in gpus}
    return rest(0, start, frozenset())


@settings(max_examples=120, deadline=None)
@given(
    gpus(),
    st.lists(st.tuples(st.sampled_from(PROFILES), st.booleans()), min_size=1, max_size=4),
    st.lists(st.sampled_from(ATTRIBUTES), min_size=1, max_size=2, unique=True),
)
def test_devices_that_differ_are_found_exactly_when_they_exist(
    gpus: list[Gpu], wanted: list[tuple[str, bool]], attributes: list[str]
) -> None:
    requests = [request(f"r{n}", f"mig-{p}") for n, (p, _) in enumerate(wanted)]
    bound = [f"r{n}" for n, (_, yes) in enumerate(wanted) if yes]
    constraints = [
        {"distinctAttribute": f"mig.dra.dev/{a}", "requests": bound} for a in attributes if bound
    ]
    decision = decide(with_gpus(*gpus), claim("c", *requests, constraints=constraints))
    assert (decision is not None) == fits_apart(gpus, wanted, attributes)
    if decision is None:
        return
    held: dict[str, list[Instance | Placement]] = {}
    for pick in decision.picks:
        assert pick.placement is not None
        at = next(g for g in gpus if g.name == pick.gpu)
        here = held.setdefault(pick.gpu, [i.placement for i in at.instances])
        assert not any(pick.placement.overlaps(p) for p in here if isinstance(p, Placement))
        here.append(pick.placement)
    for attribute in attributes:
        seen = [
            {"parentUUID": p.gpu, "profile": p.profile, "type": "mig"}[attribute]
            for p in decision.picks
            if p.request in bound
        ]
        assert len(seen) == len(set(seen))


# -- capacity


TWICE = Geometry(
    (
        profile("1g.18gb", 19, slices=1, memory=16384, starts=[0, 1, 2, 3, 4, 5, 6], size=1),
        profile("3g.71gb", 9, slices=3, memory=71168, starts=[0, 4], size=4),
        profile("7g.141gb", 0, slices=7, memory=143104, starts=[0], size=8),
    )
)
"""A GPU with more memory a slice than an A100."""


def test_a_request_by_memory_takes_a_larger_profile_when_no_smaller_one_is_free() -> None:
    known = cluster("node-a", "node-b")
    known.set_mignode(mignode("node-a", filled(0, 0, 4)))
    known.set_mignode(mignode("node-b", gpu(0, "node-b", geometry=TWICE)))
    asked = claim("c", request("r", "mig-min-20gb"))
    decision = decide(known, asked)
    assert decision is not None
    assert (decision.node, decision.picks[0].profile) == ("node-b", "3g.71gb")


def test_memory_beyond_every_profile_names_the_largest() -> None:
    known = cluster("node-a", "node-b")
    known.set_mignode(mignode("node-b", gpu(0, "node-b", geometry=TWICE)))
    capacity = {"requests": {"memory": "200Gi"}}
    found = why(known, claim("c", request("r", "mig.dra.dev", capacity=capacity)))
    assert found.reason is Reason.NO_SUCH_PROFILE
    assert "the largest is 7g.141gb with 143104Mi" in found.message


@pytest.mark.parametrize(
    ("size", "expected"), [(5, "1g.5gb"), (10, "1g.10gb"), (20, "3g.20gb"), (40, "7g.40gb")]
)
def test_a_class_of_a_round_size_gives_the_smallest_profile_of_that_name_or_more(
    size: int, expected: str
) -> None:
    decision = decide(with_gpus(gpu(0)), claim("c", request("r", f"mig-min-{size}gb")))
    assert decision is not None
    assert decision.picks[0].profile == expected


def test_round_sizes_are_offered_as_far_as_the_profiles_go() -> None:
    def sizes(*profiles: str) -> set[str]:
        names = {c["metadata"]["name"] for c in generated_classes(DRIVER, profiles)}
        return {n for n in names if n.startswith("mig-min-")}

    assert sizes("1g.5gb", "3g.20gb+me") == {"mig-min-5gb", "mig-min-10gb", "mig-min-20gb"}
    assert sizes() == set()
    assert looks_ours("mig-min-80gb")
    assert not looks_ours("mig-min-80gb-mine")


@pytest.mark.parametrize("product", product_names())
def test_every_product_is_in_the_size_classes_of_its_profile_names(product: str) -> None:
    """A profile that is called ``n``gb is in every class up to n, and in none above."""
    profiles = load_product(product).gi_profiles
    for name, memory_mib in ((p.name, p.memory_mib) for p in profiles):
        nominal = int(name.split(".")[1].partition("gb")[0])
        for size in ROUND_SIZES:
            (body,) = [
                c
                for c in generated_classes(DRIVER, ["7g.999gb"])
                if c["metadata"]["name"] == f"mig-min-{size}gb"
            ]
            expression = body["spec"]["selectors"][0]["cel"]["expression"]
            least = int(expression.partition("quantity('")[2].partition("Mi")[0])
            assert (memory_mib >= least) == (nominal >= size), (name, size)


def test_a_request_by_memory_gets_the_smallest_profile_of_all_products() -> None:
    twelve = "device.capacity['mig.dra.dev'].memory.compareTo(quantity('12Gi')) >= 0"
    asked = claim("c", request("r", "mig.dra.dev", twelve))
    decision = decide(with_gpus(gpu(0)), asked)
    assert decision is not None
    assert decision.picks[0].profile == "3g.20gb"
    known = cluster("node-a", "node-b")
    known.set_mignode(mignode("node-a", gpu(0, geometry=TWICE)))
    decision = decide(known, asked)
    assert decision is not None
    assert (decision.node, decision.picks[0].profile) == ("node-a", "1g.18gb")
    by_field = request("r", "mig.dra.dev", capacity={"requests": {"memory": "12Gi"}})
    decision = decide(with_gpus(gpu(0)), claim("c", by_field))
    assert decision is not None
    assert decision.picks[0].profile == "3g.20gb"
