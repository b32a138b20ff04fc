"""What large claims of tenants leave in a controller's memory, live or gone."""

from __future__ import annotations

import gc
import json
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from controller.cluster.cluster import Cluster
from controller.cluster.decoder import remembering
from controller.queue.refused import About, Refused
from controller.queue.searches import alike
from dra.allocator.problem import examine
from dra.claims.classes import generated_classes
from dra.claims.reader import Reader
from dra.claims.reasons import Obstacle, Reason
from dra.claims.stored import MOST_FINALIZERS
from dra.common.resources import DEVICE_CLASSES, PODS, RESOURCE_CLAIMS, Obj
from dra.kube.reflector import Store
from hack.bench.objects import as_stored
from tests.controller.helpers.bench import Bench
from tests.controller.helpers.deciding import problem
from tests.controller.helpers.objects import (
    DRIVER,
    allocated,
    claim,
    cluster,
    device_class,
    opaque,
    pod,
    request,
    versioned,
)
from tests.controller.helpers.stored import Stored

CLAIMS = 2
"""Enough to tell what each of them leaves."""

NAME = "name-of-the-claim"
VERSION = 4_000_000_000
"""Number of the claim as it is stored; NAME and this one are others in each that comes."""

KIB = 1024
OTHER = "gpu.example.com"


def nested(size: int) -> Any:
    """JSON of so many bytes that is many times as large in memory."""
    found: Any = 0
    for _ in range(min(size // 2, 200)):
        found = [found]
    width = max(1, size // (len(json.dumps(found)) + 1))
    return {"lists": [json.loads(json.dumps(found)) for _ in range(width)]}


def parameters(driver: str, entries: int, size: int) -> list[Obj]:
    return [
        {"opaque": {"driver": driver, "parameters": {"kind": f"{NAME}-{n}", **nested(size)}}}
        for n in range(entries)
    ]


def with_parameters(name: str, *, device_class: str, driver: str) -> Obj:
    body = claim(name, request("r", device_class))
    body["spec"]["devices"]["config"] = parameters(driver, 32, 2_000)
    return body


def of_another_driver(name: str) -> Obj:
    return with_parameters(name, device_class="other", driver=OTHER)


def of_ours_with_parameters_of_another(name: str) -> Obj:
    return with_parameters(name, device_class="mig-1g.5gb", driver=OTHER)


def with_parameters_of_ours(name: str) -> Obj:
    return with_parameters(name, device_class="mig-1g.5gb", driver=DRIVER)


def allocated_by_another_driver(name: str) -> Obj:
    body = allocated(claim(name, request("r", "other")), "node-a", "dev", finalizer=False)
    body["status"]["allocation"]["devices"]["results"][0]["driver"] = OTHER
    body["status"]["allocation"]["devices"]["config"] = parameters(OTHER, 32, 2_000)
    return body


def allocated_by_another_driver_with_parameters_of_ours(name: str) -> Obj:
    """As kube-scheduler copies them, which does not ask whose they are."""
    body = allocated_by_another_driver(name)
    body["status"]["allocation"]["devices"]["config"] = parameters(DRIVER, 32, 2_000)
    return body


def allocated_by_kube_scheduler(name: str) -> Obj:
    body = allocated(with_parameters_of_ours(name), "node-a", "gpu-0", finalizer=False)
    copied = [{"source": "FromClaim", **c} for c in body["spec"]["devices"]["config"]]
    body["status"]["allocation"]["devices"]["config"] = copied
    return body


def shown_by_another_driver(name: str) -> Obj:
    body = allocated(claim(name, request("r", "other")), "node-a", "dev", finalizer=False)
    body["status"]["devices"] = [
        {"driver": OTHER, "pool": "p", "device": f"d{n}", "data": nested(2_000)} for n in range(32)
    ]
    return body


def shown_by_ours_with_much_data(name: str) -> Obj:
    body = allocated(claim(name), "node-a", "gpu-0-mig-1g5gb-19-4")
    failed = {"type": "Ready", "status": "False", "reason": "XidError", "message": name}
    body["status"]["devices"] = [
        {
            "driver": DRIVER,
            "pool": "p",
            "device": "gpu-0-mig-1g5gb-19-4",
            "conditions": [failed],
            "data": nested(10_000),
        }
    ]
    return body


def with_long_selectors(name: str) -> Obj:
    texts = [f"'{name}{n}' != '{'x' * 10_000}'" for n in range(32)]
    return claim(name, request("r", "mig-1g.5gb", *texts))


def with_annotations(name: str) -> Obj:
    body = claim(name)
    body["metadata"] |= {"annotations": {"a": "x" * 250_000}, "labels": {"b": "x" * 60}}
    return body


def with_many_finalizers(name: str) -> Obj:
    body = claim(name)
    body["metadata"]["finalizers"] = [f"example.com/{name}-{n}" for n in range(5000)]
    return body


def with_many_owners(name: str) -> Obj:
    body = claim(name)
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "p"}
    body["metadata"]["ownerReferences"] = [owner | {"uid": f"{name}-{n}"} for n in range(5000)]
    return body


LARGE = [
    of_another_driver,
    of_ours_with_parameters_of_another,
    with_parameters_of_ours,
    allocated_by_another_driver,
    allocated_by_another_driver_with_parameters_of_ours,
    allocated_by_kube_scheduler,
    shown_by_another_driver,
    shown_by_ours_with_much_data,
    with_long_selectors,
    with_annotations,
    with_many_finalizers,
    with_many_owners,
]


class Mirrored:
    """A cluster index behind mirrors, as a controller has it, with a pod for each claim."""

    def __init__(self) -> None:
        self.cluster: Cluster = cluster("node-a")
        self.reader = Reader(DRIVER, self.cluster.fleet.kinds, self.cluster.classes)
        self._stores = {r: Store(remembering(r)) for r in (RESOURCE_CLAIMS, PODS)}
        self._trimmers = {r: Stored(r) for r in (RESOURCE_CLAIMS, PODS)}
        for body in generated_classes(DRIVER, ["1g.5gb"]):
            self.cluster.set_class(versioned(body))
        self.cluster.set_class(versioned(device_class("other", f"device.driver == '{OTHER}'")))

    def come(self, text: bytes, number: int) -> None:
        """A claim as the API server sends it, and its pod, at which the controller looks."""
        name = f"c{number}"
        for old, new in ((NAME, name), (f"{VERSION}", f"{number + 1}"), (f"{VERSION:08x}", name)):
            text = text.replace(old.encode(), new.encode())
        for change in self._put(RESOURCE_CLAIMS, json.loads(text)):
            self.cluster.set_claim(change)
        for change in self._put(PODS, as_stored(PODS, pod(name, name), number + 1)):
            self.cluster.set_pod(change)
        examine(self.cluster.pods["default", name], self.cluster, self.reader)

    def go(self, number: int) -> None:
        name = f"c{number}"
        for resource in (PODS, RESOURCE_CLAIMS):
            obj = self._stores[resource].get(name, "default")
            assert obj is not None
            self._stores[resource].remove(obj)
        self.cluster.remove_pod(("default", name))
        self.cluster.remove_claim(("default", name))
        self.cluster.take_effects()

    def _put(self, resource: Any, obj: Obj) -> Iterator[Obj]:
        for change in self._stores[resource].put(self._trimmers[resource](obj)):
            assert change.new is not None
            yield change.new


@pytest.mark.parametrize("make", LARGE, ids=lambda make: make.__name__)
def test_large_claims_leave_little_behind(make: Callable[[str], Obj]) -> None:
    known = Mirrored()
    text = msgspec.json.encode(as_stored(RESOURCE_CLAIMS, make(NAME), VERSION))
    for number in range(2 * CLAIMS):  # tables of all claims have grown by then
        known.come(text, CLAIMS + number)
    for number in range(2 * CLAIMS):
        known.go(CLAIMS + number)
    tracemalloc.start()
    try:
        before = retained()
        for number in range(CLAIMS):
            known.come(text, number)
        live = retained() - before
        for number in range(CLAIMS):
            known.go(number)
        gone = retained() - before
    finally:
        tracemalloc.stop()
    assert live < CLAIMS * 20 * KIB, f"{live / CLAIMS / KIB:.0f} KiB a claim"
    assert gone < CLAIMS * 12 * KIB, "nothing but small entries of caches"


def retained() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


def test_of_a_class_no_parameters_of_another_driver_are_kept() -> None:
    body = device_class("c", "true", config=[opaque("spread"), *parameters(OTHER, 3, 10_000)])
    trimmed = Stored(DEVICE_CLASSES)(versioned(body))
    assert trimmed["spec"]["config"] == [opaque("spread")]
    assert trimmed["spec"]["selectors"] == body["spec"]["selectors"]


def test_a_claim_with_too_many_finalizers_is_not_touched() -> None:
    bench = Bench("node-a")
    body = with_many_finalizers("c")
    bench.cluster.set_claim(Stored(RESOURCE_CLAIMS)(bench.api.put(RESOURCE_CLAIMS, body)))
    bench.pod(pod("p", "c"))
    bench.run(seconds=1)
    assert len(bench.finalizers("c")) == 5000, "none of others is lost"
    assert bench.api.writes == []
    messages = [m for _, _, reason, m in bench.recorder.events if reason == "AllocationRefused"]
    assert any(f"more than {MOST_FINALIZERS} finalizers" in m for m in messages)


def test_failures_of_ever_new_claims_are_not_all_remembered() -> None:
    refused = Refused(lambda: 0.0)
    obstacle = Obstacle(Reason.WAITING, "x" * 1000)
    asked = problem(cluster("node-a"), claim("c"))
    (wants,) = asked.claims
    ((want,),) = wants.choices
    for number in range(3000):
        other = replace(want, expressions=(f"'{number}' != '{'x' * 9000}'",))
        asked_otherwise = replace(asked, claims=(replace(wants, choices=((other,),)),))
        refused.note(About.SEARCH, (alike(asked_otherwise), frozenset()), obstacle)
    assert refused.weight(About.SEARCH) <= 16 * KIB * KIB
    assert len([*refused.standing(About.SEARCH)]) > 1000
