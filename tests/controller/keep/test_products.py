"""Every product that there is, in every way in which its slices may be asked for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dra.claims.classes import ROUND_SIZES
from dra.common.resources import RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS, Obj
from dra.gpu.geometry import Geometry
from dra.gpu.names import class_name, extended_resource_name
from dra.limits.asks import is_profile
from dra.limits.rewriting import rewritten
from sim.nvml.products import load_product, product_names
from tests.controller.helpers.bench import Bench
from tests.controller.helpers.limit_templates import made, namespace
from tests.controller.helpers.objects import claim, gpu, mignode, node, pod, request
from tests.dra.gpus import product_geometry

_BY_PROFILES = {
    tuple(p.name for p in found): name
    for name in product_names()
    if (found := load_product(name).gi_profiles)
}
SLICED = sorted(_BY_PROFILES.values())
"""Of products whose profiles have the same names, one."""


def _bench(product: str) -> Bench:
    bench = Bench()
    bench.cluster.set_namespace(namespace())
    bench.cluster.set_node(node("node-a"))
    known = load_product(product)
    whole = replace(
        gpu(geometry=product_geometry(product)),
        memory_mib=max(p.memory_mib for p in known.gi_profiles),
    )
    bench.cluster.set_mignode(mignode("node-a", whole))
    bench.run()
    return bench


def _ask_by_limits(bench: Bench, limits: dict[str, int]) -> list[str]:
    """A pod with such limits, rewritten, its claims made from its templates; their devices."""
    body = pod("p")
    del body["spec"]["resourceClaims"]
    body["spec"]["containers"][0]["resources"] = {"limits": limits}
    body = rewritten(body)
    waiting = bench.pod(body)
    bench.run()
    statuses = []
    for entry in waiting["spec"]["resourceClaims"]:
        name, template = entry["name"], entry["resourceClaimTemplateName"]
        spec = bench.api.get(RESOURCE_CLAIM_TEMPLATES, template)["spec"]["spec"]
        made_from = claim(name)
        made_from["spec"] = spec
        bench.claim(made_from)
        statuses.append({"name": name, "resourceClaimName": name})
    bench.pod({**body, "status": {"resourceClaimStatuses": statuses}})
    bench.run()
    return [device for each in statuses for device in bench.devices(each["resourceClaimName"])]


def _ask(bench: Bench, *requests: Obj) -> list[str]:
    bench.serve("p", "c", *requests)
    return bench.devices("c")


def _end(bench: Bench) -> None:
    """The pod goes, and its claims with it: the GPU is empty again."""
    bench.delete_pod("p")
    for plural, name in [*bench.api.objects]:
        if plural == RESOURCE_CLAIMS.plural:
            bench.lose_claim(name)
    bench.run()


@pytest.mark.parametrize("product", SLICED)
def test_each_profile_has_class_and_template_and_is_served_by_either(product: str) -> None:
    profiles = [p.name for p in product_geometry(product).profiles if p.placements]
    bench = _bench(product)
    assert {class_name(each) for each in profiles} <= bench.classes()
    assert {f"nvidia.com-{class_name(each)}" for each in profiles} <= made(bench)
    for name in profiles:
        resource = extended_resource_name(name)
        assert is_profile(resource), name
        assert len(_ask(bench, request("r", class_name(name)))) == 1, name
        _end(bench)
        assert len(_ask_by_limits(bench, {resource: 1})) == 1, name
        _end(bench)


@pytest.mark.parametrize("product", SLICED)
def test_each_way_to_ask_for_any_of_its_slices_is_served(product: str) -> None:
    bench = _bench(product)
    largest = max(p.memory_mib for p in product_geometry(product).profiles)
    sizes = [f"mig-min-{size}gb" for size in ROUND_SIZES]
    for name in ("mig.dra.dev", *(size for size in sizes if size in bench.classes())):
        assert len(_ask(bench, request("r", name))) == 1, name
        _end(bench)
    for limits in (
        {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 4000},
        {"nvidia.com/gpumem": largest},
        {"nvidia.com/gpu": 1, "nvidia.com/gpumem-percentage": 10},
        {"nvidia.com/gpu": 1, "nvidia.com/gpucores": 10},
    ):
        assert len(_ask_by_limits(bench, limits)) == 1, limits
        _end(bench)


def test_slices_with_and_without_media_engines_are_asked_for_by_one_pod() -> None:
    bench = _bench("RTX-PRO-6000-Blackwell-Server")
    names = ("nvidia.com/mig-1g.24gb.me", "nvidia.com/mig-1g.24gb-me")
    devices = _ask_by_limits(bench, dict.fromkeys(names, 1))
    assert len({*devices}) == len(names)


def test_a_profile_whose_name_no_limit_can_have_gets_a_class_and_no_template() -> None:
    bench = Bench()
    bench.cluster.set_namespace(namespace())
    strange = replace(product_geometry("A30").profiles[0], name="1x.weird")
    bench.cluster.set_node(node("node-a"))
    bench.cluster.set_mignode(mignode("node-a", gpu(geometry=Geometry((strange,)))))
    bench.run()
    assert "mig-1x.weird" in bench.classes()
    assert made(bench) == set()
