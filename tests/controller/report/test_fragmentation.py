"""Fragmentation and quotas as metrics: counted as by looking at each GPU, and small at any size."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache

import pytest
from prometheus_client import CollectorRegistry

from controller.report.metrics import ControllerMetrics
from dra.allocator.fleet import Fleet
from dra.allocator.fragmentation import rooms
from dra.cel.kinds import Kinds
from dra.gpu.geometry import EMPTY, Geometry, Occupant, Profile, Usage
from dra.gpu.inventory import Gpu, Instance, InstanceState
from dra.monitoring.probes import Probes
from dra.monitoring.server import serving
from tests.controller.helpers.bench import Bench
from tests.controller.helpers.objects import DRIVER, claim, gpu, inventory, mignode, pod, request
from tests.controller.world.worldchecks import set_quotas
from tests.dra.gpus import A100, product_geometry
from tests.helpers.scrape import Scrape, collected, scraped

H100 = product_geometry("H100-80GB-HBM3")
HOSTILE = 'NVIDIA <img src=x onerror=alert(1)> "{{ 7*7 }}" \\n\n\x1b[31m{{\\'


@cache
def most(geometry: Geometry, usage: Usage, profile: Profile) -> int:
    """The most slices of a profile, by trying."""
    places = geometry.free_placements(usage, profile)
    after = (geometry.add(usage, Occupant(place, profile.id)) for place in places)
    return max((1 + most(geometry, each, profile) for each in after), default=0)


def filled(draw: random.Random, minor: int, node: str, geometry: Geometry) -> tuple[Gpu, Usage]:
    """A GPU with instances at random, and what they take."""
    usage, instances = EMPTY, []
    for _ in range(draw.randrange(6)):
        profile = draw.choice(geometry.profiles)
        if places := sorted(geometry.free_placements(usage, profile)):
            place = draw.choice(places)
            usage = geometry.add(usage, Occupant(place, profile.id))
            state = InstanceState("foreign")
            instances.append(Instance(place, state, profile_id=profile.id, profile=profile.name))
    product = "H100" if geometry is H100 else "A100"
    made = gpu(minor, node, geometry=geometry, instances=tuple(instances))
    return replaced(made, product), usage


def replaced(of: Gpu, product: str) -> Gpu:
    return replace(of, product_name=product)


def metrics_of(fleet: Fleet) -> tuple[CollectorRegistry, ControllerMetrics]:
    registry = CollectorRegistry()
    metrics = ControllerMetrics(registry, leads=lambda: True, now=lambda: datetime.now(UTC))
    metrics.begins(tuple, fleet)
    return registry, metrics


@pytest.mark.parametrize("seed", range(6))
def test_room_is_what_each_gpu_has_by_trying(seed: int) -> None:
    draw, fleet = random.Random(seed), Fleet(DRIVER, Kinds())
    for profile in draw.choices(A100.profiles, k=10):
        fleet.demand.observe(profile.name)
    expected: dict[str, Counter[str]] = {"A100": Counter(), "H100": Counter()}
    for n in range(8):
        geometry = draw.choice((A100, H100))
        made = [filled(draw, m, f"n{n}", geometry) for m in range(4)]
        fleet.set_inventory(inventory(f"n{n}", *(g for g, _ in made)))
        for g, usage in made:
            sums, left = expected[g.product_name], 8 - usage.mask.bit_count()
            sums["free"] += left
            sums["held"] += 8 - left
            for profile, share in zip(
                geometry.profiles, fleet.demand.shares(geometry), strict=True
            ):
                number = most(geometry, usage, profile)
                sums[profile.name] += number
                sums["stranded"] += 0 if number else share * left  # type: ignore[assignment]
                if number:
                    sums["largest"] = max(sums["largest"], profile.memory_slices)
    registry, metrics = metrics_of(fleet)
    found = collected(registry)
    for product, sums in expected.items():
        geometry = A100 if product == "A100" else H100
        if not sums:
            continue
        for state in ("free", "held"):
            got = found.value("mig_dra_memory_slices", product=product, state=state)
            assert got == sums[state]
        assert found.value("mig_dra_stranded_memory_slices", product=product) == pytest.approx(
            sums["stranded"]
        )
        largest = found.value("mig_dra_largest_placeable_memory_slices", product=product)
        assert largest == sums["largest"]
        for profile in geometry.profiles:
            labels = {"product": product, "profile": profile.name}
            assert found.value("mig_dra_placeable_slices", **labels) == sums[profile.name]
    metrics.begins()
    assert not collected(registry).values("mig_dra_memory_slices"), "it does not lead"


def test_nothing_is_made_on_gpus_that_are_withheld() -> None:
    fleet = Fleet(DRIVER, Kinds())
    fleet.set_inventory(inventory("a", gpu(0, "a"), gpu(1, "a", mig=False)))
    fleet.leave_out("a", "gpu-0", "it failed")
    [room] = rooms(fleet).values()
    assert (room.held, room.free, room.withheld, room.largest) == (0, 0, 8, 0)
    assert not room.placeable.total()


def over_http(registry: CollectorRegistry) -> Scrape:
    with serving("127.0.0.1:0", registry, Probes()) as port:
        return scraped(port)


def test_a_name_is_text_whatever_it_is_and_quotas_show_with_what_is_held() -> None:
    bench = Bench("node-a")
    bench.cluster.set_mignode(mignode("node-a", replaced(gpu(0, "node-a"), HOSTILE)))
    set_quotas(bench, {"mig-1g.5gb": {"devices": 3, "memory": 15}})
    bench.claim(claim("c", request("r", count=2)))
    bench.pod(pod("p", "c"))
    bench.run()
    registry, _ = metrics_of(bench.cluster.fleet)
    found = over_http(registry)
    assert {each["product"] for each in found.labels("mig_dra_memory_slices")} == {HOSTILE}
    of_class = {"device_class": "mig-1g.5gb"}
    held = {"namespace": "default", **of_class}
    assert found.value("mig_dra_quota_devices", **of_class) == 3
    assert found.value("mig_dra_quota_memory_bytes", **of_class) == 15 * 2**30
    assert found.value("mig_dra_quota_held_devices", **held) == 2
    assert found.value("mig_dra_quota_held_memory_bytes", **held) == 10 * 2**30
