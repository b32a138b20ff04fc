"""Every product that there is, in every way in which its slices may be asked for."""

from __future__ import annotations

from dataclasses import replace

from dra.common.resources import RESOURCE_CLAIM_TEMPLATES
from dra.limits.rewriting import rewritten
from sim.nvml.products import load_product
from tests.controller.helpers.bench import Bench
from tests.controller.helpers.limit_templates import namespace
from tests.controller.helpers.objects import claim, gpu, mignode, node, pod
from tests.dra.gpus import product_geometry


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


def test_slices_with_and_without_media_engines_are_asked_for_by_one_pod() -> None:
    bench = _bench("RTX-PRO-6000-Blackwell-Server")
    names = ("nvidia.com/mig-1g.24gb.me", "nvidia.com/mig-1g.24gb-me")
    devices = _ask_by_limits(bench, dict.fromkeys(names, 1))
    assert len({*devices}) == len(names)
