"""Allocations of pods that cannot run for another reason than room, given up and taken again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from controller import times
from controller.cluster.cluster import VOLUMES
from tests.controller.helpers.bench import Bench
from tests.controller.helpers.objects import claim, device_class, pod, request
from tests.controller.helpers.volumes import storage_class, uses, volume, volume_claim

OTHERS = "device.driver == 'tape.example.com'"


def bench_with_volumes() -> Bench:
    bench = Bench("node-a")
    bench.cluster.set_storage_class(storage_class("late"))
    bench.cluster.set_volume(volume("v", phase="Bound"))
    bench.cluster.set_volume_claim(volume_claim("data", volume="v"))
    for resource in VOLUMES:
        bench.cluster.note_listed(resource)
    bench.cluster.set_class(device_class("tapes", OTHERS))
    return bench


def with_volume(**spec: Any) -> Bench:
    """A claim that is allocated for a pod with a volume, which nobody has bound."""
    bench = bench_with_volumes()
    bench.serve("p", "c", **{"volumes": uses("data"), **spec})
    assert bench.devices("c")
    return bench


def with_tape(**spec: Any) -> Bench:
    """A claim that is allocated for a pod with one of another driver, which waits."""
    bench = bench_with_volumes()
    bench.claim(claim("c"))
    bench.claim(claim("tape", request("r", "tapes")))
    bench.pod(pod("p", "c", "tape", **spec))
    bench.run()
    assert bench.devices("c")
    return bench


def volume_claim_goes(bench: Bench) -> None:
    bench.cluster.remove_volume_claim(("default", "data"))


def volume_claim_ends(bench: Bench) -> None:
    ending = volume_claim("data", volume="v")
    ending["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    bench.cluster.set_volume_claim(ending)


def volume_is_lost(bench: Bench) -> None:
    bench.cluster.set_volume_claim(volume_claim("data", volume="v", phase="Lost"))


def volume_claim_comes(bench: Bench) -> None:
    bench.cluster.set_volume_claim(volume_claim("data", volume="v"))


def reserve(bench: Bench, *pods: str) -> None:
    consumers = [{"resource": "pods", "name": p, "uid": f"uid-{p}"} for p in pods]
    bench.change_claim("c", reservedFor=consumers)


def wait(bench: Bench, seconds: float) -> None:
    """Time passes, and two more steps are taken where they are due."""
    bench.run(seconds=seconds)
    bench.run(seconds=1.0)
    bench.run(seconds=1.0)


@pytest.mark.parametrize("happens", [volume_claim_goes, volume_claim_ends, volume_is_lost])
@pytest.mark.parametrize("reserved", [False, True])
def test_a_slice_is_given_up_where_a_volume_claim_keeps_its_pod_from_running(
    happens: Callable[[Bench], None], *, reserved: bool
) -> None:
    bench = with_volume()
    if reserved:
        reserve(bench, "p")
    happens(bench)
    bench.run()
    bench.run(seconds=times.POD_HINDERED / 2)
    assert bench.devices("c"), "it may come back at once"
    wait(bench, times.POD_HINDERED / 2)
    assert not bench.devices("c")
    assert "AllocationTakenBack" in bench.recorder.reasons("c")
    (said,) = {e[3] for e in bench.recorder.events if e[2] == "WaitingForVolumeClaim"}
    assert said.startswith("PersistentVolumeClaim data ")
    assert bench.condition("p")["message"] == said
    (given_up,) = (e[3] for e in bench.recorder.events if e[2] == "AllocationTakenBack")
    assert said in given_up
    bench.pod(pod("q", "d"))
    bench.claim(claim("d", request("r", "mig-7g.40gb")))
    bench.run()
    assert bench.devices("d"), "others may have it"
    bench.delete_pod("q")
    bench.run()
    volume_claim_comes(bench)
    bench.run()
    assert bench.devices("c")


def test_a_slice_stays_where_another_pod_may_use_it() -> None:
    bench = with_volume()
    bench.pod(pod("other", "c"))
    bench.run()
    volume_claim_goes(bench)
    for _ in range(3):
        wait(bench, times.POD_HINDERED)
    assert bench.devices("c")
    bench.pod(pod("other", "c", volumes=uses("data")))
    bench.run()
    for _ in range(3):
        wait(bench, times.POD_HINDERED)
    assert not bench.devices("c"), "neither can"


# -- claims of other drivers


def test_a_slice_is_given_up_where_a_claim_of_another_driver_stays_unallocated() -> None:
    bench = with_tape()
    bench.run(seconds=times.POD_HINDERED / 2)
    assert bench.devices("c"), "kube-scheduler allocates both together"
    wait(bench, times.POD_HINDERED / 2)
    assert not bench.devices("c")
    (said,) = {e[3] for e in bench.recorder.events if e[2] == "WaitingForOtherClaim"}
    assert said == "ResourceClaim tape, which is for another driver, stays unallocated"
    assert bench.condition("p")["message"] == said
    (given_up,) = (e[3] for e in bench.recorder.events if e[2] == "AllocationTakenBack")
    assert said in given_up
