"""Sharing as a claim and its classes configure it: who has the last word, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from dra.allocator.problem import examine
from dra.claims.reader import Fault, Reader
from dra.common.resources import Obj
from dra.pods.pods import read_pod
from tests.controller.helpers.objects import (
    DRIVER,
    allocated,
    claim,
    cluster,
    device_class,
    pod,
    request,
    versioned,
)

SLICE, GPU = "MigDeviceConfig", "GpuConfig"


def config(kind: str, strategy: str = "", *requests: str, **more: Any) -> Obj:
    sharing = {"sharing": {"strategy": strategy, **more}} if strategy else {}
    parameters = {"apiVersion": "mig.dra.dev/v1alpha1", "kind": kind, **sharing}
    return {"opaque": {"driver": DRIVER, "parameters": parameters}, "requests": list(requests)}


def part(kind: str, **share: Any) -> Obj:
    """Configuration that asks for a part of a GPU or slice."""
    parameters = {"apiVersion": "mig.dra.dev/v1alpha1", "kind": kind, "share": share}
    return {"opaque": {"driver": DRIVER, "parameters": parameters}}


def alternative(name: str, **more: Any) -> Obj:
    return {"name": name, "deviceClassName": "mig-1g.5gb", **more}


REFUSED: dict[str, tuple[list[Obj], list[Obj], str]] = {
    "for a whole GPU, on a slice": (
        [request()],
        [config(GPU, "MPS")],
        "is not for request 'r' of class 'mig-1g.5gb', which is a slice: write kind MigDevice",
    ),
    "for a slice, on a whole GPU": (
        [request("r", "gpu.dra.dev")],
        [config(SLICE, "MPS")],
        "a whole GPU: write kind GpuConfig, whose sharing.strategy may be: None, TimeSlicing, MPS",
    ),
    "two devices of one request": ([request(count=2)], [config(SLICE, "MPS")], "this one holds 2"),
    "all devices": (
        [request("r", "gpu.dra.dev", allocationMode="All")],
        [config(GPU, "MPS")],
        "holds all that there are",
    ),
    "two devices of two requests": (
        [request(), request("s"), request("t")],
        [config(SLICE, "MPS", "r"), config(SLICE, "MPS", "t")],
        "this one holds 2: its daemon serves one device",
    ),
    "the larger of two alternatives": (
        [{"name": "r", "firstAvailable": [alternative("one"), alternative("two", count=2)]}],
        [config(SLICE, "MPS", "r")],
        "this one holds 2",
    ),
    "turns on a slice": (
        [request()],
        [config(SLICE, "TimeSlicing")],
        "field 'sharing.strategy': NVIDIA's driver sets the length of turns for whole GPUs only",
    ),
    "a part of a slice that one claim has": (
        [request()],
        [part(SLICE, memoryMiB=4096)],
        "share is not for request 'r' of class 'mig-1g.5gb', which is a slice, and one claim has",
    ),
    "a part of a GPU that one claim has": (
        [request("r", "gpu.dra.dev")],
        [part(GPU, cores=30)],
        "which is a whole GPU, and one claim has all of it: leave share out, or ask for a part",
    ),
    "for a part of a GPU, on one of a slice": (
        [request("r", "mig-share.dra.dev")],
        [part(SLICE, cores=30), part(GPU, cores=30)],
        "not for request 'r' of class 'mig-share.dra.dev', a part of a slice: write kind MigDevice",
    ),
    "for a part of a slice, on one of a GPU": (
        [request("r", "gpu-share.dra.dev")],
        [part(SLICE, cores=30)],
        "not for request 'r' of class 'gpu-share.dra.dev', a part of a whole GPU: write kind Gpu",
    ),
}


def found_for(known: Any, *claims: Obj, **spec: Any) -> Any:
    for body in claims:
        known.set_claim(versioned(body))
    body = versioned(pod("p", *(c["metadata"]["name"] for c in claims), **spec))
    reader = Reader(DRIVER, known.fleet.kinds, known.classes)
    return examine(read_pod(body), known, reader).found


def classes() -> Any:
    known = cluster("node-a")
    for name, kind in (
        ("mig-1g.5gb", "mig"),
        ("gpu.dra.dev", "gpu"),
        ("gpu-share.dra.dev", "gpu-share"),
        ("mig-share.dra.dev", "mig-share"),
    ):
        expression = (
            f"device.driver == '{DRIVER}' && device.attributes['{DRIVER}'].type == '{kind}'"
        )
        known.set_class(versioned(device_class(name, expression)))
    return known


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_shared_so_is_refused_before_anything_is_allocated(case: str) -> None:
    requests, configs, told = REFUSED[case]
    found = found_for(classes(), claim("c", *requests, config=configs))
    assert isinstance(found, Fault)
    assert told in found.obstacle.message
    assert found.obstacle.reason == "InvalidConfig"


def containers(**claims: list[str]) -> list[Obj]:
    return [
        {"name": name, "resources": {"claims": [{"name": c} for c in used]}}
        for name, used in claims.items()
    ]


def test_a_container_is_the_client_of_one_daemon_and_uses_nothing_beside() -> None:
    known = classes()
    shared = claim("shared", config=[config(SLICE, "MPS")])
    given = allocated(claim("given"), "node-a", "gpu-0-mig-1g5gb-19-0")
    crowded = found_for(
        known, shared, given, initContainers=containers(first=["shared", "given"]), containers=[]
    )
    assert isinstance(crowded, Fault)
    assert crowded.claim.name == "shared"
    assert "container 'first' uses claims given, shared" in crowded.obstacle.message
    apart = containers(one=["shared"], other=["given"])
    assert not isinstance(found_for(known, shared, given, containers=apart), Fault)
    foreign = claim("nic", request("r", "nics"))
    known.set_class(versioned(device_class("nics", "device.driver == 'nics.example.com'")))
    beside = containers(one=["shared", "nic"])
    assert not isinstance(found_for(known, shared, foreign, containers=beside), Fault)


@pytest.mark.parametrize(
    ("used", "crowd"),
    [
        ([{"name": "two", "request": "m"}], ""),
        ([{"name": "two", "request": "t"}], ""),
        ([{"name": "two", "request": "t"}, {"name": "one"}], ""),
        ([{"name": "two"}], "two/m, two/t"),
        ([{"name": "two", "request": "t"}, {"name": "two", "request": "m"}], "two/m, two/t"),
        ([{"name": "two", "request": "m"}, {"name": "one"}], "one, two"),
        ([{"name": "two"}, {"name": "one"}], "one, two/m, two/t"),
    ],
)
def test_a_container_names_the_one_request_that_is_shared_by_mps(
    used: list[Obj], crowd: str
) -> None:
    """As in NVIDIA's sample gpu-test5: one claim, two GPUs, and each container has one of them."""
    requests = [request("t", "gpu.dra.dev"), request("m", "gpu.dra.dev")]
    configs = [config(GPU, "TimeSlicing", "t"), config(GPU, "MPS", "m")]
    bodies = [claim("two", *requests, config=configs)]
    if {"name": "one"} in used:
        bodies.append(claim("one"))
    spec = [{"name": "main", "resources": {"claims": used}}]
    found = found_for(classes(), *bodies, containers=spec)
    assert isinstance(found, Fault) == bool(crowd)
    if crowd:
        assert found.claim.name == "two"
        assert f"container 'main' uses claims {crowd}, of which" in found.obstacle.message
