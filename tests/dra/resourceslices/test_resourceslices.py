"""The slices of a node: complete, within the API's limits, in the order that does least damage."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest

from dra.claims.conditions import SLICE_MADE, SLICE_NOT_MADE
from dra.gpu.geometry import Geometry, Occupant, Placement
from dra.gpu.inventory import ClaimRef, Drain, Gpu, Instance, InstanceState, Inventory
from dra.gpu.names import MigDevice, parse_device
from dra.resourceslices.partitions import Blocked, Doubts, offered
from dra.resourceslices.resourceslices import Features, SliceLayout, object_name
from sim.nvml.products import load_product, product_names
from tests.dra.gpus import A100, node_of, product_geometry, sliced_gpu
from tests.dra.resourceslices.counters import FirstFit
from tests.dra.resourceslices.counters import profile as of_profile
from tests.dra.resourceslices.limits import breaches

CLAIM = ClaimRef("default", "c", "uid")
COMBINED = Features(separate=False)


def layout(
    inventory: Inventory, blocked: Blocked | None = None, features: Features | None = None
) -> SliceLayout:
    features = features or Features()
    return SliceLayout(offered(inventory, blocked or {}, taints=features.taints), features)


def specs(made: SliceLayout) -> list[dict[str, Any]]:
    return [made.spec(index, generation=3) for index in range(len(made))]


def devices(made: SliceLayout) -> list[dict[str, Any]]:
    return [d for spec in specs(made) for d in spec.get("devices", [])]


def names(made: SliceLayout) -> list[str]:
    return [d["name"] for d in devices(made)]


def test_counter_sets_have_slices_of_their_own_from_1_35_on() -> None:
    made = specs(layout(node_of(*(sliced_gpu(i) for i in range(16)))))
    shapes = [(len(s.get("sharedCounters", ())), len(s.get("devices", ()))) for s in made]
    assert shapes[:2] == [(8, 0), (8, 0)]
    assert {counters for counters, _ in shapes[2:]} == {0}
    assert [count for _, count in shapes[2:-1]] == [64] * (len(shapes) - 3)


@pytest.mark.parametrize("product", product_names())
def test_no_product_exceeds_a_limit_of_the_api(product: str) -> None:
    geometry = product_geometry(product)
    gpu = replace(sliced_gpu(0, geometry), product_name=load_product(product).name)
    several = replace(gpu, slice_shares=64)
    for spec in specs(layout(node_of(several))):
        assert breaches(spec) == []
    inventory = node_of(*(replace(gpu, minor=i, uuid=f"GPU-{i}") for i in range(8)))
    for spec in specs(layout(inventory)):
        assert breaches(spec) == []
    assert specs(layout(inventory, features=COMBINED))


def test_a_gpu_without_mig_is_a_device_without_counters() -> None:
    made = layout(node_of(*(Gpu(minor=i, uuid=f"GPU-{i}") for i in range(129))))
    assert [len(s["devices"]) for s in specs(made)] == [128, 1]
    assert all("consumesCounters" not in d for d in devices(made))


def test_a_gpu_for_several_claims_has_capacities_that_they_consume() -> None:
    plain = replace(sliced_gpu(0), mig_enabled=False, multiprocessors=108)
    (device,) = devices(layout(node_of(replace(plain, shares=4))))
    assert device["allowMultipleAllocations"] is True
    assert device["attributes"]["type"] == {"string": "gpu-share"}
    found = {name: (c["value"], c["requestPolicy"]) for name, c in device["capacity"].items()}
    steps = {"min": "1Mi", "step": "1Mi"}
    assert found == {
        "memory": ("40Gi", {"default": "10Gi", "validRange": steps}),
        "multiprocessors": ("108", {"default": "0", "validRange": {"min": "0"}}),
        "cores": ("100", {"default": "0", "validRange": {"min": "0", "step": "1"}}),
        "shares": ("4", {"default": "1", "validValues": ["1"]}),
    }
    (device,) = devices(layout(node_of(plain)))
    assert "allowMultipleAllocations" not in device
    assert device["capacity"] == {"memory": {"value": "40Gi"}, "multiprocessors": {"value": "108"}}


def test_long_names_end_in_a_digest() -> None:
    first = object_name(0, driver="mig.dra.dev", node=f"{'n' * 250}-a")
    second = object_name(0, driver="mig.dra.dev", node=f"{'n' * 250}-b")
    assert len(first) <= 253
    assert first != second


def test_first_fit_never_gives_two_devices_that_overlap() -> None:
    fit = FirstFit.of(layout(node_of(*(sliced_gpu(i) for i in range(4)))))
    kinds = itertools.cycle(["1g.5gb", "3g.20gb", "2g.10gb", "1g.5gb+me", "1g.10gb", "4g.20gb"])
    given: list[MigDevice] = []
    refused = 0
    while refused < 6:
        name = fit.allocate(of_profile(next(kinds)))
        if name is None:
            refused += 1
            continue
        refused = 0
        device = parse_device(name)
        assert isinstance(device, MigDevice)
        given.append(device)
    for minor in range(4):
        taken: list[Occupant] = []
        for device in (d for d in given if d.minor == minor):
            occupant = occupant_of(A100, device)
            assert not any(o.placement.overlaps(occupant.placement) for o in taken)
            taken.append(occupant)
        assert sum(o.placement.size for o in taken) >= 7


def occupant_of(geometry: Geometry, device: MigDevice) -> Occupant:
    found = geometry.by_id(device.profile_id)
    assert found is not None
    return Occupant(Placement(device.start, found.memory_slices), found.id)


def test_what_does_not_fit_beside_a_foreign_instance_is_not_offered() -> None:
    foreign = Occupant(Placement(4, 4), 9)
    made = layout(node_of(sliced_gpu(0), sliced_gpu(1)), {"GPU-0": (foreign,)})
    on_first = [parse_device(n) for n in names(made) if n.startswith("gpu-0-")]
    assert on_first
    for device in on_first:
        assert isinstance(device, MigDevice)
        assert not occupant_of(A100, device).placement.overlaps(foreign.placement)
    assert len([n for n in names(made) if n.startswith("gpu-1-")]) == 25
    first = specs(made)[0]["sharedCounters"][0]["counters"]
    assert [first[f"memory-slice-{i}"]["value"] for i in range(8)] == list("11110000")
    assert first["decoders"]["value"] == "3"


def test_a_foreign_instance_in_the_way_of_an_allocated_device_stops_no_other_gpu() -> None:
    """In 1.36 one counter below zero stops the whole pool."""
    blocked = {"GPU-0": (Occupant(Placement(6, 1), 20),)}
    fit = FirstFit.of(layout(node_of(sliced_gpu(0), sliced_gpu(1)), blocked))
    published = {d["name"]: d for d in fit.devices}
    for allocated in ("gpu-0-mig-3g20gb-9-4", "gpu-0-mig-1g5gb-me-20-0"):
        if allocated in published:
            fit.take(published[allocated], 1)
    assert fit.allocate(of_profile("7g.40gb")) == "gpu-1-mig-7g40gb-0-0"


def test_what_claims_hold_stays_as_it_is() -> None:
    held = Instance(Placement(4, 4), InstanceState.PREPARED, profile_id=9, claim=CLAIM)
    busy = replace(sliced_gpu(0), instances=(held,))
    assert offered(node_of(busy), {}, taints=True) == offered(
        node_of(sliced_gpu(0)), {}, taints=True
    )


@pytest.mark.parametrize("ready", [True, False])
def test_a_gpu_out_of_service_is_tainted_or_left_out(ready: bool) -> None:  # noqa: FBT001
    sick = replace(sliced_gpu(0), unavailable="XID 79", reason="XidError")
    inventory = replace(node_of(sick, Gpu(minor=7, uuid="GPU-7")), ready=ready)
    tainted = devices(layout(inventory))
    value = "XidError" if ready else "DriverNotReady"
    taint = {"key": "mig.dra.dev/unavailable", "value": value, "effect": "NoSchedule"}
    assert all(d["taints"] == [taint] for d in tainted if d["name"].startswith("gpu-0-"))
    assert len(tainted) == 26
    assert ("taints" in tainted[-1]) is not ready
    for spec in specs(layout(inventory)):
        assert breaches(spec) == []
    without = devices(layout(inventory, features=Features(taints=False)))
    assert [d["name"] for d in without] == (["gpu-7"] if ready else [])


@pytest.mark.parametrize(
    ("instance", "value"),
    [
        (Instance(Placement(4, 4), InstanceState.LOST, profile_id=9, claim=CLAIM), "SliceLost"),
        (
            Instance(
                Placement(4, 4), InstanceState.PREPARED, profile_id=9, claim=CLAIM, unhealthy="XID"
            ),
            "XidError",
        ),
    ],
)
def test_a_held_slice_in_trouble_is_tainted_and_never_left_out(
    instance: Instance, value: str
) -> None:
    inventory = node_of(replace(sliced_gpu(0), instances=(instance,)))
    found = {d["name"]: d.get("taints", []) for d in devices(layout(inventory))}
    marked = {name: taints[0]["value"] for name, taints in found.items() if taints}
    assert marked == {"gpu-0-mig-3g20gb-9-4": value}
    without = devices(layout(inventory, features=Features(taints=False)))
    assert {d["name"] for d in without} == set(found)
    assert all("taints" not in d for d in without)


def test_gpus_in_doubt_are_tainted_or_left_out_and_made_first_where_that_is_served() -> None:
    whole = Gpu(minor=2, uuid="GPU-2")
    inventory = node_of(sliced_gpu(0), sliced_gpu(1), whole)
    doubts = Doubts(
        left_out=frozenset({"GPU-0", "GPU-2"}), made_first=frozenset({"GPU-1", "GPU-2"})
    )

    def found(*, taints: bool = True, binding: bool = True) -> dict[str, set[tuple[str, str]]]:
        features = Features(taints=taints, binding=binding)
        offer = offered(inventory, {}, taints=taints, doubts=doubts)
        made = SliceLayout(offer, features)
        for spec in specs(made):
            assert breaches(spec) == []
        seen: dict[str, set[tuple[str, str]]] = {}
        for device in devices(made):
            (taint,) = device.get("taints", [{"value": ""}])
            binds = " ".join(device.get("bindingConditions", ()))
            seen.setdefault(device["name"][:5], set()).add((taint["value"], binds))
        return seen

    first = ("", SLICE_MADE)
    assert found() == {"gpu-0": {(SLICE_NOT_MADE, "")}, "gpu-1": {first}, "gpu-2": {("", "")}}
    assert found(taints=False) == {"gpu-1": {first}, "gpu-2": {("", "")}}
    assert found(binding=False)["gpu-1"] == {("", "")}


def test_a_drained_gpu_is_tainted_or_left_out() -> None:
    inventory = replace(node_of(sliced_gpu(0), sliced_gpu(1)), drain=Drain(("gpu-0",)))
    tainted = offered(inventory, {}, taints=True).partitions
    assert {p.trouble for p in tainted if p.gpu.minor == 0} == {"Drained"}
    assert {p.trouble for p in tainted if p.gpu.minor == 1} == {""}
    bare = offered(inventory, {}, taints=False).partitions
    assert {p.gpu.minor for p in bare} == {1}
