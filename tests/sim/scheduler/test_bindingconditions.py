"""Binding conditions as the stand-in for kube-scheduler has them: for a claim, and for its pod."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from dra.claims.conditions import published_binding
from dra.common.resources import PODS, RESOURCE_CLAIMS, Obj
from dra.gpu.names import DEFAULT_DRIVER
from dra.kube.client import KubeApi
from dra.kube.reflector import Reflector
from sim.scheduler import scheduler as queue
from sim.scheduler.claims import BindingFailedError, are_ready, is_given_up, waits_for
from sim.scheduler.scheduler import Scheduler
from tests.helpers.waiting import wait_for
from tests.sim import standins
from tests.sim.standins import get_claim, get_pod

NOW = datetime(2026, 1, 1, 0, 10, tzinfo=UTC)
ALLOCATED = "2026-01-01T00:00:00Z"
AWAITED, FAILING = (names[0] for names in published_binding().values())


def result(device: str = "d", *, awaited: bool = True) -> Obj:
    return {
        "request": "r0",
        "driver": DEFAULT_DRIVER,
        "pool": "node-a",
        "device": device,
        **(published_binding() if awaited else {}),
    }


def said(device: str = "d", **conditions: str) -> Obj:
    """An entry of ``status.devices``."""
    entries = [{"type": kind, "status": status} for kind, status in conditions.items()]
    return {"driver": DEFAULT_DRIVER, "pool": "node-a", "device": device, "conditions": entries}


def claim(results: list[Obj], *devices: Obj) -> Obj:
    allocation = {"devices": {"results": results}, "allocationTimestamp": ALLOCATED}
    status = {"allocation": allocation, "devices": list(devices)}
    return {"metadata": {"name": "c"}, "status": status}


@pytest.mark.parametrize(
    ("obj", "ready"),
    [
        (claim([result(awaited=False)]), True),
        (claim([result()]), False),
        (claim([result()], said()), False),
        (claim([result()], said(SliceMade="True")), True),
        (claim([result()], said(SliceMade="False")), False),
        (claim([result()], said(SliceMade="Unknown")), False),
        (claim([result()], said(SliceMade="True", CreationFailed="False")), True),
        (claim([result()], said("other", SliceMade="True")), False),
        (claim([result(), result("e")], said(SliceMade="True")), False),
        (claim([result(), result("e", awaited=False)], said(SliceMade="True")), True),
        ({"metadata": {"name": "c"}, "status": {}}, False),
    ],
)
def test_all_of_a_claim_have_to_be_true(obj: Obj, *, ready: bool) -> None:
    assert are_ready([obj], now=NOW, seconds=3600) is ready
    assert not is_given_up(obj, now=NOW, seconds=3600)


def test_a_failure_condition_counts_and_so_does_time() -> None:
    failed = claim([result()], said(SliceMade="True", CreationFailed="True"))
    with pytest.raises(BindingFailedError, match="device binding failed: claim=c"):
        are_ready([failed], now=NOW, seconds=3600)
    assert is_given_up(failed, now=NOW, seconds=3600)
    waiting = claim([result()])
    assert waits_for(waiting)
    assert not is_given_up(waiting, now=NOW, seconds=600)
    assert is_given_up(waiting, now=NOW + timedelta(seconds=1), seconds=600)
    with pytest.raises(BindingFailedError, match="timeout"):
        are_ready([waiting], now=NOW + timedelta(seconds=1), seconds=600)
    made = claim([result()], said(SliceMade="True"))
    assert are_ready([made], now=NOW + timedelta(days=1), seconds=600)
    assert not is_given_up(claim([result(awaited=False)]), now=NOW, seconds=1)


@pytest.fixture
def make_scheduler(
    api: KubeApi, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Scheduler]]:
    monkeypatch.setattr(queue, "FIRST_BACKOFF", 0.05)
    made: list[Scheduler] = []

    def make(**seconds: float) -> Scheduler:
        made.append(Scheduler(api, look_seconds=0.05, **seconds))
        made[-1].start()
        standins.create_node(api, "node-a")
        standins.create_class(api)
        return made[-1]

    yield make
    for scheduler in made:
        scheduler.stop()


def waiting(api: KubeApi, name: str, **allocation: Any) -> None:
    """A pod whose claim somebody allocates with binding conditions."""
    standins.create_claim(api, name)
    api.create(PODS, standins.pod(name, claim={"resourceClaimName": name}))
    standins.allocate(api, name, "node-a", binding=True, **allocation)
    wait_for("the reservation", lambda: get_claim(api, name)["status"].get("reservedFor"))


@contextmanager
def closing_watch(watch: Reflector) -> Iterator[None]:
    watch.start()
    assert watch.wait_synced(None)
    try:
        yield
    finally:
        watch.stop()


def tell(api: KubeApi, name: str, condition: str) -> None:
    given = get_claim(api, name)["status"]["allocation"]["devices"]["results"][0]
    entry = {
        "type": condition,
        "status": "True",
        "reason": "Told",
        "message": "",
        "lastTransitionTime": ALLOCATED,
    }
    device = {k: given[k] for k in ("driver", "pool", "device")} | {"conditions": [entry]}
    body = {"status": {"devices": [device]}}
    api.patch(RESOURCE_CLAIMS, name, body, namespace="default", subresource="status")


def node(api: KubeApi, name: str) -> str:
    return str(get_pod(api, name)["spec"].get("nodeName", ""))


def test_a_pod_is_bound_once_the_condition_is_true_and_others_do_not_wait_for_it(
    api: KubeApi, make_scheduler: Callable[..., Scheduler]
) -> None:
    make_scheduler(binding_seconds=1e9)
    waiting(api, "a")
    api.create(PODS, standins.pod("b"))
    wait_for("the other", lambda: node(api, "b"))
    assert node(api, "a") == ""
    tell(api, "a", AWAITED)
    wait_for("the node", lambda: node(api, "a"))


def test_a_failure_has_the_allocation_taken_back_in_two_steps(
    api: KubeApi, make_scheduler: Callable[..., Scheduler]
) -> None:
    make_scheduler(binding_seconds=1e9)
    seen: list[Obj] = []
    watch = Reflector(
        api, RESOURCE_CLAIMS, on_event=lambda change: seen.append((change.new or {})["status"])
    )
    waiting(api, "a")
    with closing_watch(watch):
        tell(api, "a", FAILING)
        wait_for("the end", lambda: "allocation" not in get_claim(api, "a")["status"])
        wait_for("that it was seen", lambda: seen and "allocation" not in seen[-1])
    told = [s for s in seen if "devices" in s]
    assert [("reservedFor" in s, "allocation" in s) for s in told] == [(True, True), (False, True)]
    assert "devices" not in get_claim(api, "a")["status"]
    standins.allocate(api, "a", "node-a", binding=True)
    wait_for("the reservation", lambda: get_claim(api, "a")["status"].get("reservedFor"))
    tell(api, "a", AWAITED)
    wait_for("the node", lambda: node(api, "a"))


def test_an_allocation_that_is_too_old_is_taken_back(
    api: KubeApi, make_scheduler: Callable[..., Scheduler]
) -> None:
    make_scheduler()
    standins.create_claim(api, "a")
    api.create(PODS, standins.pod("a", claim={"resourceClaimName": "a"}))
    standins.allocate(api, "a", "node-a", binding=True)
    wait_for("the end", lambda: "allocation" not in get_claim(api, "a")["status"])
    assert node(api, "a") == ""
