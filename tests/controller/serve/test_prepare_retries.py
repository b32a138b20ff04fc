"""Kubelet made to ask again for claims that were not prepared, once that is of use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from controller import times
from dra.common.resources import PODS, RESOURCE_CLAIMS, Obj
from dra.gpu.inventory import FailedClaim, Gpu, Instance
from dra.gpu.mignode import to_mignode
from dra.gpu.names import prepare_retry
from dra.kube.errors import UnavailableError
from tests.controller.helpers.bench import Bench
from tests.controller.helpers.fakeapi import once
from tests.controller.helpers.objects import (
    DRIVER,
    allocated,
    claim,
    gpu,
    instance,
    inventory,
    pod,
    request,
    versioned,
)
from tests.controller.helpers.stored import Stored

FIRST = "2026-01-01T00:10:00.000001Z"
SECOND = "2026-01-01T00:20:00.000001Z"
DEVICE = "gpu-0-mig-2g10gb-14-0"


def bound(
    *, asked: bool = True, pods: int = 1, phase: str = "Pending", taken: bool = True, **spec: Any
) -> Bench:
    """A pod bound to node-a, whose claim has 2g.10gb at 0 of its GPU.

    ``asked``: the claim's status says so. ``pods``: so many have reserved the claim. ``taken``:
    kubelet has seen the pod.
    """
    bench = Bench("node-a", "node-b")
    bench.claim(shown(reason="Prepared" if asked else "", pods=pods))
    bench.pod(stored_pod(phase, taken=taken, **spec))
    bench.run()
    return bench


def stored_pod(phase: str, *, taken: bool, **spec: Any) -> Obj:
    status = {"phase": phase} | ({"startTime": "2026-01-01T00:00:00Z"} if taken else {})
    return Stored(PODS)({**pod("p", "c", nodeName="node-a", **spec), "status": status})


def shown(*, reason: str, device: str = DEVICE, pods: int = 1) -> Obj:
    """The claim with what its node says of its slice: a reason, "" for nothing."""
    made = allocated(claim("c", request("r", "mig-2g.10gb")), "node-a", DEVICE)
    names = [f"p{number or ''}" for number in range(pods)]
    made["status"]["reservedFor"] = [
        {"resource": "pods", "name": name, "uid": f"uid-{name}"} for name in names
    ]
    condition = {"type": "Ready", "status": str(reason == "Prepared"), "reason": reason}
    told = {"driver": DRIVER, "pool": "node-a-pool", "device": device, "conditions": [condition]}
    made["status"]["devices"] = [told] if reason else []
    return Stored(RESOURCE_CLAIMS)(made)


def tells(
    bench: Bench,
    *,
    failed: str = "",
    passing: bool = False,
    resumed: str = "",
    gpus: tuple[Gpu, ...] = (),
    ready: bool = True,
    node: str = "node-a",
) -> None:
    """The node says when the claim's Prepare failed, or that calls had been cut short."""
    failure = FailedClaim("default", "c", "uid-c", failed, passing)
    said = replace(
        inventory(node, *gpus),
        failed_claims=(failure,) if failed else (),
        resumed=resumed,
        ready=ready,
    )
    bench.cluster.set_mignode(versioned(to_mignode(said)))
    bench.run()


def holding(*instances: Instance) -> tuple[Gpu, ...]:
    return (gpu(instances=instances),)


def marks(bench: Bench) -> int:
    """Number of writes to pods."""
    return bench.api.writes.count(PODS.plural)


def mark(bench: Bench) -> str:
    annotations: Obj = bench.api.get(PODS, "p")["metadata"].get("annotations", {})
    return str(annotations.get(prepare_retry(DRIVER), ""))


@pytest.mark.parametrize(
    "blocked",
    [
        {"gpus": holding(instance("1g.5gb", 1, uid="other", state="reclaiming"))},
        {"gpus": holding(instance("1g.5gb", 0, state="foreign"))},
        {"gpus": (gpu(unavailable="off the bus", reason="GpuLost"),)},
        {"gpus": (gpu(1),)},
        {"gpus": (gpu(mig=False),)},
        {"ready": False},
    ],
    ids=["holder", "foreign", "lost", "absent", "MIG mode off", "not ready"],
)
def test_kubelet_asks_again_once_what_was_in_the_way_is_gone(blocked: dict[str, Any]) -> None:
    bench = bound()
    tells(bench, failed=FIRST, **blocked)
    assert marks(bench) == 0
    tells(bench, failed=FIRST)
    assert (marks(bench), mark(bench)) == (1, FIRST)
    tells(bench, failed=FIRST, **blocked)
    tells(bench, failed=FIRST)
    bench.run(seconds=600)
    assert marks(bench) == 1, "once for each failure"


def test_what_a_killed_plugin_left_is_asked_for_when_it_is_back() -> None:
    bench = bound()
    tells(bench, resumed=FIRST)
    assert (marks(bench), mark(bench)) == (1, FIRST)
    tells(bench, resumed=FIRST)
    bench.run(seconds=600)
    assert marks(bench) == 1


@pytest.mark.parametrize(
    ("bench", "moments"),
    [
        ({"asked": False}, times.PREPARE_UNASKED),
        ({"asked": True, "pods": 2}, times.PREPARE_UNASKED),
        ({"asked": True}, []),
        ({"asked": False, "phase": "Running"}, []),
        ({"asked": False, "taken": False}, []),
    ],
    ids=["nothing told", "another pod's", "asked", "runs", "no kubelet"],
)
def test_kubelet_asks_again_a_few_times_while_nothing_tells_that_it_has(
    bench: dict[str, Any], moments: Sequence[float]
) -> None:
    site = bound(**bench)
    told: list[float] = []
    for tick in range(1, 1000):
        site.run(seconds=0.1)
        told += [tick / 10] * (marks(site) - len(told))
    assert told == pytest.approx(moments, abs=0.11)


def test_the_time_begins_when_kubelet_has_seen_the_pod() -> None:
    bench = bound(asked=False, taken=False)
    bench.run(seconds=600)
    bench.pod(stored_pod("Pending", taken=True))
    bench.run()
    bench.run(seconds=times.PREPARE_UNASKED[0] - 0.1)
    assert marks(bench) == 0
    bench.run(seconds=0.1)
    assert marks(bench) == 1


def test_a_plugin_that_is_back_was_not_asked_for_pods_that_kubelet_has_not_seen() -> None:
    bench = bound(taken=False)
    tells(bench, resumed=FIRST)
    assert marks(bench) == 0
    bench.pod(stored_pod("Pending", taken=True))
    bench.run()
    assert (marks(bench), mark(bench)) == (1, FIRST)


def test_a_failure_tells_that_kubelet_has_seen_the_pod() -> None:
    bench = bound(taken=False)
    tells(bench, failed=FIRST, passing=True)
    assert (marks(bench), mark(bench)) == (1, FIRST)


@pytest.mark.parametrize(
    ("told", "number"),
    [
        ({"reason": "Prepared"}, 0),
        ({"reason": "SliceLost"}, 0),
        ({"reason": "SliceLost", "device": "gpu-0-mig-2g10gb-14-2"}, 1),
    ],
    ids=["prepared", "lost", "of an earlier allocation"],
)
def test_it_is_not_where_the_node_tells_of_what_the_claim_has(
    told: dict[str, Any], number: int
) -> None:
    bench = bound(asked=False)
    bench.claim(shown(**told))
    bench.run(seconds=times.PREPARE_UNASKED[0])
    assert marks(bench) == number


@pytest.mark.parametrize("phase", ["Running", "Succeeded"])
def test_a_pod_that_was_started_is_left_alone(phase: str) -> None:
    bench = bound(phase=phase)
    tells(bench, failed=FIRST, passing=True)
    tells(bench, resumed=FIRST)
    assert marks(bench) == 0


def test_a_write_that_failed_is_made_again_after_a_pause() -> None:
    bench = bound()
    bench.api.refuse = once(PODS.plural, UnavailableError("no answer", status=503))
    tells(bench, resumed=FIRST)
    assert marks(bench) == 0
    bench.run(seconds=times.PREPARE_AGAIN[0] - 0.1)
    assert marks(bench) == 0
    bench.run(seconds=0.1)
    assert (marks(bench), mark(bench)) == (1, FIRST)


def test_the_next_leader_neither_repeats_a_mark_nor_follows_it_too_soon() -> None:
    bench = bound()
    tells(bench, resumed=FIRST)
    new = bench.succeeded_by("node-a")
    tells(new, resumed=FIRST)
    assert marks(new) == 0
    tells(new, failed=SECOND, passing=True)
    assert marks(new) == 0
    new.run(seconds=times.PREPARE_AGAIN[0])
    assert (marks(new), mark(new)) == (1, SECOND)
