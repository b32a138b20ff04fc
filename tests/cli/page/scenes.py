"""Clusters that the page shows: a busy one of two nodes, and MigNodes of many."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec import structs

from dra.common.resources import PODS, RESOURCE_CLAIMS, Obj
from dra.gpu.inventory import ClaimRef, Gpu, Instance
from tests.cli.world import World
from tests.controller.helpers.objects import gpu, instance, request

CONDITION = "mig.dra.dev/ClaimsAllocated"


def held(profile: str, start: int, claim: ClaimRef | None, state: str = "prepared") -> Instance:
    """An instance on an A100 that a claim holds, or nobody."""
    made = instance(profile, start, state=state)
    return structs.replace(made, claim=claim, uuid=f"MIG-{profile}-{start}")


def make_wait(world: World, name: str, *claims: str, **condition: Any) -> Obj:
    """A pod about which the controller has said why it waits."""
    pod = world.add_pod(name, *claims)
    say_waiting(world, pod, **condition)
    return pod


def say_waiting(
    world: World, pod: Obj, *, reason: str = "WaitingForSlices", message: str = "no GPU has room"
) -> None:
    stamp = "2026-01-02T03:04:05Z"
    told = {"type": CONDITION, "status": "False", "reason": reason, "message": message}
    condition = {**told, "lastTransitionTime": stamp}
    world.set_status(PODS, pod, {"phase": "Pending", "conditions": [condition]})


def busy(world: World) -> None:
    """Two nodes with three GPUs; pod ``waits`` wants a whole A100, of which none is free."""
    world.add_classes("1g.5gb", "2g.10gb", "3g.20gb", "7g.40gb")
    world.lead()
    train = world.hold("train", "node-a", "gpu-0-mig-3g20gb-9-4", pod_name="trainer-0")
    book = world.hold("nb", "node-a", "gpu-0-mig-1g5gb-19-0", pod_name="notebook")
    big = world.hold("big", "node-b", "gpu-0-mig-4g20gb-5-0", pod_name="big-0")
    shown = {c["metadata"]["name"]: reference(c) for c in (train, book, big)}
    first = gpu(
        0,
        "node-a",
        instances=(
            held("1g.5gb", 0, shown["nb"]),
            held("1g.5gb", 1, None, "foreign"),
            held("3g.20gb", 4, shown["train"]),
        ),
    )
    second = gpu(1, "node-a", unavailable="ECC errors: look at nvidia-smi -q", reason="EccErrors")
    world.add_node("node-a", first, second)
    world.add_node("node-b", gpu(0, "node-b", instances=(held("4g.20gb", 0, shown["big"]),)))
    world.add_claim("wanted", request("r", "mig-7g.40gb"))
    pod = make_wait(world, "waits", "wanted", message="no GPU has room for 7g.40gb")
    world.tell(pod, "WaitingForSlices", "no GPU has room", source="mig.dra.dev/controller")


def reference(claim: Obj) -> ClaimRef:
    metadata = claim["metadata"]
    return ClaimRef(metadata["namespace"], metadata["name"], metadata["uid"])


def end_pod(world: World, name: str, *claims: str) -> None:
    """A pod and its claims are gone."""
    world.api.delete(PODS, name, namespace="default", grace_seconds=0)
    for each in claims:
        world.api.delete(RESOURCE_CLAIMS, each, namespace="default")


def many_gpus(node: str, number: int) -> Iterator[Gpu]:
    """GPUs of a large cluster, seven slices on each but the last, of 20 namespaces in turn."""
    for minor in range(number):
        refs = [
            ClaimRef(
                f"team-{(minor + start) % 20}",
                f"c-{node}-{minor}-{start}",
                f"u-{node}-{minor}-{start}",
            )
            for start in range(7)
        ]
        slices = tuple(held("1g.5gb", start, ref) for start, ref in enumerate(refs))
        yield gpu(minor, node, instances=slices if minor < number - 1 else slices[:2])
