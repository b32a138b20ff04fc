"""Quotas of namespaces: no namespace ever holds more of a class than the class lets it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from msgspec import structs

from dra.common.resources import DEVICE_CLASSES, RESOURCE_CLAIMS, Obj, Resource
from dra.gpu.inventory import ClaimRef
from dra.kube.errors import KubeError, UnavailableError
from tests.controller.helpers.bench import Bench
from tests.controller.helpers.desk import Desk, settle
from tests.controller.helpers.objects import (
    claim,
    copied,
    gpu,
    instance,
    mignode,
    pod,
    request,
)
from tests.controller.serve.gangs.gangpods import told
from tests.controller.world.worldchecks import check_quotas, set_quotas
from tests.dra.gpus import product_geometry

SMALL, LIMIT, PODS = "mig-1g.5gb", 12, 200
QUOTAS = {SMALL: {"devices": LIMIT, "memory": 60}}
NODES = tuple(f"node-{n}" for n in range(4))


class Watched:
    """Leaders one after the other; every state that is stored is within the quotas."""

    def __init__(self) -> None:
        self.desk = Desk()
        self.bench = Bench(*NODES, send=self.desk.send)
        settle(self.bench, self.desk)
        set_quotas(self.bench, QUOTAS)
        self.most = 0
        self._store, self.bench.api.put = self.bench.api.put, self._put  # type: ignore[method-assign]

    def claims(self) -> list[tuple[str, Obj]]:
        known = self.bench.api.objects.items()
        return [(name, obj) for (plural, name), obj in known if plural == RESOURCE_CLAIMS.plural]

    def serve(self) -> None:
        settle(self.bench, self.desk)

    def die(self) -> list[Callable[[], object]]:
        """The leader ends with all that it sent under way; of each other request, as it is."""
        late: list[Callable[[], object]] = []
        send = self.bench.api.patch

        def patch(*args: Any, **more: Any) -> Obj:
            if len(late) % 2:
                late.append(partial(send, *args, **more))
                raise UnavailableError("no answer")
            late.append(lambda: None)
            return send(*args, **more)

        self.bench.api.patch = patch  # type: ignore[method-assign]
        self.desk.work_off()
        self.bench.api.patch = send  # type: ignore[method-assign]
        return late

    def succeed(self) -> None:
        """The next leader has listed everything, and its fence stands."""
        self.desk = Desk()
        self.bench = self.bench.succeeded_by(*NODES, send=self.desk.send)
        set_quotas(self.bench, QUOTAS)
        fence = self.bench.fence()
        while not fence.stands():
            fence.work()
            self.desk.work_off()
            fence.absorb()

    def _put(self, resource: Resource, obj: Obj) -> Obj:
        stored = self._store(resource, obj)
        sums = check_quotas(self.claims(), QUOTAS)
        self.most = max(self.most, sums[SMALL, "devices"])
        return stored


def test_pods_created_at_once_are_never_over_it_in_a_change_of_leader_and_all_are_served() -> None:
    world = Watched()
    for number in range(PODS):
        world.bench.ask(f"p{number}", f"p{number}", request("r", SMALL))
    world.bench.run()
    assert world.desk.jobs, "nothing is on its way when the leader dies"
    late = world.die()
    world.succeed()
    world.serve()
    for each in late:
        with contextlib.suppress(KubeError):
            each()
    world.serve()
    assert world.most == LIMIT
    words = (
        f"DeviceClass '{SMALL}' lets a namespace hold 12 devices at a time (mig.dra.dev/devices-per"
        "-namespace): default holds 12 devices, and the pod asks for 1 device"
    )
    assert sum(m == words for *_, m in world.bench.recorder.events) >= PODS - LIMIT
    served: set[str] = set()
    while len(served) < PODS:
        there = {name for name, _ in world.claims() if world.bench.devices(name)}
        assert there, f"nobody is served after {len(served)} pods"
        for name in there:
            world.bench.remove_pod(name)
            world.bench.lose_claim(name)
        served |= there
        settle(world.bench, world.desk, seconds=1.0)


def limited(name: str, *nodes: str, **limits: int) -> Bench:
    bench = Bench(*(nodes or NODES))
    set_quotas(bench, {name: limits})
    return bench


def shared(bench: Bench) -> None:
    bench.cluster.set_mignode(mignode("node-0", gpu(0, "node-0", slice_shares=4)))


def whole(bench: Bench) -> None:
    bench.cluster.set_mignode(mignode("node-0", *(gpu(n, "node-0", mig=False) for n in (0, 1))))


def larger(bench: Bench) -> None:
    """One GPU that is full of 5 GB each, and one whose smallest slices have 10 GB."""
    other = gpu(0, "node-0", geometry=product_geometry("H100-80GB-HBM3"))
    bench.cluster.set_mignode(mignode("node-0", other))


def share(memory: str) -> Obj:
    return request("r", "mig-share.dra.dev", capacity={"requests": {"memory": memory}})


@pytest.mark.parametrize(
    ("name", "limits", "build", "first", "over", "words"),
    [
        (
            SMALL,
            {"devices": 2},
            None,
            request("r", SMALL, count=2),
            request(),
            "holds 2 devices, and",
        ),
        (SMALL, {"memory": 12}, None, request("r", SMALL, count=2), request(), "holds 10Gi of"),
        (
            SMALL,
            {"devices": 2},
            None,
            request("r", "mig-2g.10gb"),
            request("r", SMALL, count=3),
            "holds 0 devices, and the pod asks for 3 devices, which it can never have",
        ),
        (
            "mig-share.dra.dev",
            {"memory": 5},
            shared,
            share("3Gi"),
            share("2500Mi"),
            "holds 3Gi of memory, and the pod asks for 2500Mi of memory",
        ),
        (
            "gpu.dra.dev",
            {"memory": 79},
            whole,
            request("r", "gpu.dra.dev"),
            request("r", "gpu.dra.dev"),
            "holds 40Gi of memory, and the pod asks for 40Gi",
        ),
        (
            "gpu.dra.dev",
            {"devices": 1},
            whole,
            request("r", "gpu.dra.dev"),
            request("r", "gpu.dra.dev"),
            "holds 1 device, and the pod asks for 1 device",
        ),
        (
            "mig-min-5gb",
            {"memory": 9},
            larger,
            request("r", "mig-1g.10gb"),
            request("r", "mig-min-5gb"),
            "holds 0 of memory, and the pod asks for 10Gi of memory, which it can never have",
        ),
    ],
)
def test_what_counts(  # noqa: PLR0917 - a table
    name: str,
    limits: dict[str, int],
    build: Callable[[Bench], None] | None,
    first: Obj,
    over: Obj,
    words: str,
) -> None:
    bench = Bench("node-0")
    if build is not None:
        build(bench)
        bench.run()
    set_quotas(bench, {name: limits})
    bench.serve("a", "a", first)
    assert bench.devices("a")
    bench.serve("b", "b", over)
    assert not bench.devices("b")
    assert words in told(bench, "b")
    assert "WaitingForQuota" in bench.recorder.reasons("b")


def test_who_only_looks_is_not_counted() -> None:
    bench = limited("gpu.dra.dev", "node-0", devices=0)
    bench.serve("v", "v", request("r", "gpu.dra.dev", adminAccess=True))
    assert bench.devices("v") == ["gpu-0"]


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("devices-per-namespace", "four", "is 'four': write a whole number from 0 on, such as"),
        ("devices-per-namespace", "-1", "is '-1': write a whole number"),
        ("devices-per-namespace", "9" * 99, "write a whole number"),
        ("memory-per-namespace", "80GB", "is '80GB': write an amount of memory, such as"),
        ("memory-per-namespace", "80", "is '80': write an amount of memory, such as"),
        ("slices-per-namespace", "4", "'mig.dra.dev/slices-per-namespace' is not known: write mig"),
    ],
)
def test_a_limit_that_cannot_be_read_is_none_that_is_lifted(
    key: str, value: str, words: str
) -> None:
    bench = Bench("node-0")
    body = copied(bench.api.get(DEVICE_CLASSES, SMALL))
    body["metadata"]["annotations"][f"mig.dra.dev/{key}"] = value
    bench.cluster.set_class(bench.api.put(DEVICE_CLASSES, body))
    bench.serve("a", "a", request())
    assert not bench.devices("a")
    assert f"nothing of DeviceClass '{SMALL}' is allocated: its annotation" in told(bench, "a")
    assert words in told(bench, "a")
    set_quotas(bench, {SMALL: {"devices": 1}})
    del body["metadata"]["annotations"][f"mig.dra.dev/{key}"]
    bench.cluster.set_class(bench.api.put(DEVICE_CLASSES, body))
    bench.run(seconds=1.0)
    assert bench.devices("a")


def there(bench: Bench, name: str, *, mig: bool) -> None:
    """The node has what the claim was given, or with an empty name nothing."""
    gpus = [gpu(n, "node-0", mig=mig) for n in (0, 1)]
    if name:
        known = bench.api.get(RESOURCE_CLAIMS, name)["metadata"]
        ref = ClaimRef("default", name, known["uid"])
        made = structs.replace(instance(SMALL.removeprefix("mig-"), 4), claim=ref)
        gpus[0] = replace(gpus[0], **({"instances": (made,)} if mig else {"claims": (ref,)}))
    bench.cluster.set_mignode(mignode("node-0", *gpus))


@pytest.mark.parametrize("name", [SMALL, "gpu.dra.dev"])
@pytest.mark.parametrize("when", ["before the node says so", "after", "at a change of leader"])
def test_what_a_node_has_of_a_claim_counts_although_its_owner_has_deleted_it(
    name: str, when: str
) -> None:
    mig = name == SMALL
    bench = Bench("node-0")
    there(bench, "", mig=mig)
    set_quotas(bench, {name: {"devices": 1}})
    bench.serve("a", "a", request("r", name))
    assert bench.devices("a")
    build = partial(there, bench, "a", mig=mig)
    if when != "before the node says so":
        build()
        bench.run()
    body = bench.api.get(RESOURCE_CLAIMS, "a")
    bench.lose_claim("a")
    if when == "before the node says so":
        bench.api.put(RESOURCE_CLAIMS, body)
        build()
        bench.api.objects.pop((RESOURCE_CLAIMS.plural, "a"))
    if when == "at a change of leader":
        bench = bench.succeeded_by("node-0")
        bench.api.put(RESOURCE_CLAIMS, body)
        there(bench, "a", mig=mig)
        bench.api.objects.pop((RESOURCE_CLAIMS.plural, "a"))
        set_quotas(bench, {name: {"devices": 1}})
    bench.serve("b", "b", request("r", name))
    assert not bench.devices("b")
    assert "default holds 1 device, and the pod asks for 1 device" in told(bench, "b")
    other = claim("elsewhere", request("r", name)), pod("elsewhere", "elsewhere")
    for obj in other:
        obj["metadata"]["namespace"] = "other"
    bench.claim(other[0])
    bench.pod(other[1])
    bench.run()
    assert bench.devices("elsewhere")
    assert mig or bench.devices("elsewhere") == ["gpu-1"], "the other one is not free"
    there(bench, "", mig=mig)
    bench.run(seconds=1.0)
    assert bench.devices("b")
