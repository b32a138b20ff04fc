"""Pods resized in place: what kube-scheduler counts for each state that kubelet tells of them."""

from __future__ import annotations

from typing import Any

import pytest

from dra.common.resources import PODS, Obj
from dra.pods.pods import read_pod
from tests.controller.helpers.objects import pod, versioned
from tests.controller.helpers.stored import Stored

SMALL, LARGE = "100m", "3900m"


def asks(cpu: str, **more: str) -> Obj:
    return {"requests": {"cpu": cpu, **more}}


def resized(
    asked: str,
    *,
    actual: str | None,
    allocated: str | None,
    why: str = "",
    kind: str = "containers",
    **spec: Any,
) -> Obj:
    """A pod on node-a with a container that asks for CPU, and what kubelet tells of it."""
    body = pod("resident", nodeName="node-a", **spec)
    found = {"name": "resized", "resources": asks(asked)}
    if kind == "sidecar":
        found["restartPolicy"] = "Always"
    body["spec"]["containers"] = [] if kind != "containers" else [found]
    if kind != "containers":
        body["spec"]["initContainers"] = [found]
    told: Obj = {"name": "resized"}
    if actual is not None:
        told["resources"] = asks(actual) if actual else {}
    if allocated is not None:
        told["allocatedResources"] = {"cpu": allocated}
    field = "containerStatuses" if kind == "containers" else "initContainerStatuses"
    body["status"] = {"phase": "Running", field: [told]}
    if why:
        pending = {"type": "PodResizePending", "status": "True", "reason": why}
        body["status"]["conditions"] = [{"type": "Ready", "status": "True"}, pending]
    return body


def of_pod(asked: str, *, actual: str | None, allocated: str, why: str = "") -> Obj:
    """The same of a pod with requests of its own."""
    body = resized(SMALL, actual=None, allocated=None, why=why, resources=asks(asked))
    body["status"] |= {"allocatedResources": {"cpu": allocated}}
    if actual is not None:
        body["status"]["resources"] = asks(actual)
    return body


COUNTED: dict[str, tuple[Obj, int]] = {
    "as it was": (resized(SMALL, actual=SMALL, allocated=SMALL), 100),
    "the same in other words": (resized("0.1", actual="100m", allocated="0.1"), 100),
    "up, infeasible": (resized(LARGE, actual=SMALL, allocated=SMALL, why="Infeasible"), 100),
    "up, deferred": (resized(LARGE, actual=SMALL, allocated=SMALL, why="Deferred"), 3900),
    "up, not seen yet": (resized(LARGE, actual=SMALL, allocated=SMALL), 3900),
    "up, in progress": (resized(LARGE, actual=SMALL, allocated=LARGE), 3900),
    "down, in progress": (resized(SMALL, actual=LARGE, allocated=SMALL), 3900),
    "down, not seen yet": (resized(SMALL, actual=SMALL, allocated=LARGE), 3900),
    "down, while up was infeasible": (
        resized("10m", actual=SMALL, allocated="200m", why="Infeasible"),
        200,
    ),
    "nothing told of what it has": (resized(SMALL, actual=None, allocated=LARGE), 100),
    "infeasible, nothing told": (
        resized(LARGE, actual=None, allocated=SMALL, why="Infeasible"),
        3900,
    ),
    "infeasible, without any": (resized(LARGE, actual="", allocated=None, why="Infeasible"), 0),
    "sidecar, infeasible": (
        resized(LARGE, actual=SMALL, allocated=SMALL, why="Infeasible", kind="sidecar"),
        100,
    ),
    "init container, infeasible": (
        resized(LARGE, actual=SMALL, allocated=SMALL, why="Infeasible", kind="init"),
        3900,
    ),
    "with overhead": (
        resized(LARGE, actual=SMALL, allocated=SMALL, why="Infeasible", overhead={"cpu": "50m"}),
        150,
    ),
    "pod up, infeasible": (of_pod(LARGE, actual=SMALL, allocated=SMALL, why="Infeasible"), 100),
    "pod up, deferred": (of_pod(LARGE, actual=SMALL, allocated=SMALL, why="Deferred"), 3900),
    "pod down, in progress": (of_pod(SMALL, actual=LARGE, allocated=SMALL), 3900),
    "pod, nothing told": (of_pod(SMALL, actual=None, allocated=LARGE), 100),
}


@pytest.mark.parametrize(("body", "milli"), COUNTED.values(), ids=COUNTED)
def test_what_counts_of_a_pod_that_was_resized(body: Obj, milli: int) -> None:
    assert read_pod(Stored(PODS)(versioned(body))).needs.requests.get("cpu", 0) == milli
