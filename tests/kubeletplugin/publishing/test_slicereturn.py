"""Once kube-scheduler can allocate after all, the node is handed back to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from dra.common.resources import RESOURCE_SLICES, Obj
from dra.gpu.inventory import AllocatorKind
from dra.kube.errors import ForbiddenError, KubeError
from kubeletplugin import times
from tests.helpers.waiting import wait_for
from tests.kubeletplugin.helpers.publishedslices import (
    SLICES,
    condition,
    devices,
    published,
    slices,
)
from tests.kubeletplugin.helpers.rig import Rig


class Gate:
    """The feature gate of the API server, and what is asked of it and written meanwhile."""

    def __init__(self, rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
        self.on = True
        self.order: list[str] = []
        call = type(rig.http).call

        def spoilt(http: Any, method: str, path: str, **more: Any) -> Obj:
            answer = call(http, method, path, **more)
            if method in {"POST", "PUT"} and path.startswith(SLICES):
                self.order.append("probe" if more.get("query", {}).get("dryRun") else "slice")
                self._drop(answer["spec"])
            elif method == "PUT" and path.endswith(f"mignodes/{rig.node}"):
                self.order.append(more["body"]["spec"]["allocator"])
            return answer

        monkeypatch.setattr(type(rig.http), "call", spoilt)

    def _drop(self, spec: Obj) -> None:
        for holder in () if self.on else (spec, *spec.get("devices", [])):
            holder.pop("sharedCounters", None)
            holder.pop("consumesCounters", None)


def named(rig: Rig) -> None:
    """One slice without devices names the pool: the last that is written while the gate is off."""
    wait_for("the slice that names the pool", lambda: slices(rig) and not devices(rig))


def fallen_back(rig: Rig, gate: Gate) -> None:
    """The gate is off, and the controller allocates."""
    gate.on = False
    for found in slices(rig):
        rig.api.delete(RESOURCE_SLICES, found["metadata"]["name"])
    wait_for("the controller", lambda: rig.mignode()["spec"]["allocator"] == "controller")
    # The status is written after the spec.
    wait_for("the reason", lambda: condition(rig)["reason"] == "GateOff")
    named(rig)
    gate.order.clear()


def test_once_the_gate_is_on_the_node_is_handed_back_to_kube_scheduler(
    make_rig: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(times, "GATE_FIRST_SECONDS", 0.2)
    rig = make_rig()
    gate = Gate(rig, monkeypatch)
    rig.allocator = AllocatorKind.SCHEDULER
    rig.start()
    wait_for("slices", lambda: published(rig))
    before = devices(rig)
    fallen_back(rig, gate)
    held = rig.claim("gpu-0-mig-3g20gb-9-4")
    assert rig.prepared(held)
    wait_for("questions", lambda: gate.order.count("probe") > 4)
    assert {*gate.order} == {"probe"}, "while the gate is off, nothing is written"
    gate.on = True
    wait_for("slices", lambda: published(rig))
    told = [each for each in gate.order if each != "probe"]
    assert told[0] == "scheduler", "the controller hears of it before there is a slice"
    assert "slice" in told
    assert "controller" not in told
    assert devices(rig) == before, "among them what the controller has given away meanwhile"
    assert rig.unprepare(held) == ""
    fallen_back(rig, gate)


def test_what_is_refused_while_the_gate_is_asked_for_changes_nothing(
    make_rig: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(times, "GATE_FIRST_SECONDS", 0.2)
    rig = make_rig()
    gate = Gate(rig, monkeypatch)
    gate.on = False
    rig.allocator = AllocatorKind.SCHEDULER
    rig.start()
    wait_for("the controller", lambda: rig.mignode()["spec"]["allocator"] == "controller")
    named(rig)
    refused: list[str] = []

    def refuse(method: str, path: str) -> KubeError | None:
        if (method, path) != ("POST", SLICES):
            return None
        refused.append(path)
        return ForbiddenError("slices are not for you")

    rig.http.refuse = refuse
    wait_for("refusals", lambda: len(refused) > 2)
    assert rig.daemon is not None
    assert not rig.daemon.resource_slices._pauses, "it is asked at its own pace"
    assert condition(rig)["reason"] == "GateOff"
    assert rig.mignode()["spec"]["allocator"] == "controller"
    gate.on = True
    rig.http.refuse = lambda _method, _path: None
    wait_for("slices", lambda: published(rig))
