"""One device for one request is decided by GPU state; that must not change the decision."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from api.config import API_VERSION, KIND
from controller.cluster.cluster import Cluster
from dra.allocator.allocate import Allocator
from dra.allocator.problem import Decision
from dra.allocator.score import POLICIES
from dra.allocator.search.single import single_request
from dra.common.resources import Obj
from dra.gpu.geometry import Geometry, Occupant
from dra.gpu.inventory import Gpu, IdleInstance, Instance, InstanceState
from tests.controller.helpers.deciding import problem
from tests.controller.helpers.objects import (
    claim,
    cluster,
    device_class,
    gpu,
    mignode,
    node,
    request,
    versioned,
)
from tests.dra.gpus import A100, THIRDS

OLDER = Geometry(A100.profiles[:-1])
"""A geometry of its own whose profiles have the sizes of A100's."""

MIG = "device.driver == 'mig.dra.dev'"
PRODUCT = "device.attributes['mig.dra.dev'].productName"
OWN_CLASSES = {"anything": MIG, "pcie": f"{MIG} && {PRODUCT} == 'NVIDIA A100-PCIE-40GB'"}
CLASSES = ("mig-1g.5gb", "mig-2g.10gb", "mig-7g.40gb", "mig.dra.dev", *OWN_CLASSES)


@st.composite
def gpus(draw: st.DrawFn, minor: int, name: str) -> Gpu:
    """A GPU with a random legal set of instances; now and then one that cannot be used."""
    geometry: Geometry = draw(st.sampled_from([A100, A100, OLDER, THIRDS]))
    mig = draw(st.sampled_from([True, True, True, True, False]))
    unavailable = draw(st.sampled_from(["", "", "", "", "is lost"]))
    instances: list[Instance] = []
    usage = geometry.usage([])
    for _ in range(draw(st.integers(0, 5)) if mig else 0):
        fitting = [(p, q) for p in geometry.profiles for q in geometry.free_placements(usage, p)]
        if fitting:
            profile, placement = draw(st.sampled_from(fitting))
            usage = geometry.add(usage, Occupant(placement, profile.id))
            instances.append(Instance(placement, InstanceState.FOREIGN, profile_id=profile.id))
    idle: list[IdleInstance] = []
    for _ in range(draw(st.integers(0, 2)) if mig else 0):
        profile = draw(st.sampled_from(geometry.profiles))
        placement = draw(st.sampled_from(profile.placements))
        namespace = draw(st.sampled_from(["default", "default", "other"]))
        idle.append(IdleInstance(placement, namespace, profile.id))
    made = gpu(
        minor,
        name,
        geometry=geometry,
        mig=mig,
        instances=tuple(instances),
        unavailable=unavailable,
        idle=tuple(idle),
    )
    return replace(made, product_name="NVIDIA A100-PCIE-40GB") if draw(st.booleans()) else made


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    """Up to five nodes, some of which the pod does not fit."""
    names = [f"node-{i}" for i in range(draw(st.integers(1, 5)))]
    known = cluster(*names)
    for class_name, expression in OWN_CLASSES.items():
        known.set_class(versioned(device_class(class_name, expression)))
    for name in names:
        count = draw(st.integers(1, 3))
        known.set_mignode(mignode(name, *(draw(gpus(i, name)) for i in range(count))))
        if draw(st.integers(0, 2)) == 0:
            known.set_node(versioned(node(name, unschedulable=True)))
    return known


def both(known: Cluster, wanted: Obj) -> tuple[Decision | None, Decision | None]:
    """The decision by GPU state, and that by going through all nodes."""
    found = problem(known, wanted)
    allocator = Allocator(known.fleet, known.hosts)
    assert single_request(found.claims, known.fleet.kinds)
    quick = allocator.decide(found)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dra.allocator.allocate.single_request", lambda *_: None)
        return quick, allocator.decide(found)


@settings(max_examples=30, deadline=None)
@given(
    known=clusters(),
    name=st.sampled_from(CLASSES),
    policy=st.sampled_from(sorted(POLICIES)),
    many=st.integers(1, 3),
)
def test_one_device_is_decided_by_state_as_it_is_by_node(
    known: Cluster, name: str, policy: str, many: int
) -> None:
    parameters = {"apiVersion": API_VERSION, "kind": KIND, "placement": {"policy": policy}}
    config = [{"opaque": {"driver": "mig.dra.dev", "parameters": parameters}}]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dra.allocator.allocate.MANY", many)
        quick, thorough = both(known, claim("c", request("r", name), config=config))
    assert quick == thorough
