"""Writes under way: what they hold, what waits for them, and what their answers do."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from controller.write.in_flight import LIMIT, Senders
from dra.common.resources import PODS, Obj
from dra.kube.errors import ConflictError, InvalidError, KubeError, UnavailableError
from tests.controller.helpers.desk import at_desk, on_write, settle, wants, watch
from tests.controller.helpers.objects import FINALIZER, claim, pod
from tests.helpers.waiting import PATIENCE

STATUS = "resourceclaims/status"


@pytest.mark.parametrize(
    "error", [InvalidError("no", status=422), ConflictError("stale", status=409)]
)
@pytest.mark.parametrize("what", ["resourceclaims", STATUS])
def test_what_was_refused_is_free_for_others(what: str, error: KubeError) -> None:
    bench, desk = at_desk("node-a")
    wants(bench, "c")
    bench.run()
    wants(bench, "d")
    bench.run()
    on_write(bench, what, lambda: None, error)
    settle(bench, desk)
    settle(bench, desk, seconds=1)
    assert len(bench.devices("c") + bench.devices("d")) == 1


def test_pods_that_share_a_claim_wait_for_the_one_write_of_it() -> None:
    bench, desk = at_desk("node-a")
    bench.claim(claim("c"))
    for name in ("p1", "p2"):
        bench.pod(pod(name, "c", schedulingGates=[{"name": FINALIZER}]))
    bench.run()
    assert len(desk.jobs) == 1
    settle(bench, desk)
    assert bench.api.writes.count(STATUS) == 1
    assert all(not bench.api.get(PODS, name)["spec"]["schedulingGates"] for name in ("p1", "p2"))


def test_a_pod_that_waits_for_the_write_of_another_goes_on_when_that_fails() -> None:
    bench, desk = at_desk("node-a")
    bench.serve("p1", "c")
    bench.pod(pod("p2", "c"))
    bench.run()
    on_write(bench, "resourceclaims", lambda: bench.delete_pod("p1"), UnavailableError("no answer"))
    settle(bench, desk)
    assert bench.devices("c")


def test_a_gate_is_lifted_with_the_last_allocation_and_once() -> None:
    bench, desk = at_desk("node-a")
    for name in ("one", "two"):
        bench.claim(claim(name))
    bench.pod(pod("p", "one", "two", schedulingGates=[{"name": FINALIZER}]))
    bench.run()
    for name in ("one", "two"):
        watch(bench, name)
    bench.run()
    settle(bench, desk)
    assert bench.api.writes == ["resourceclaims", STATUS, "resourceclaims", STATUS, "pods"]
    assert desk.sent == 1


def test_a_pod_is_charged_to_its_node_as_soon_as_that_is_decided() -> None:
    bench, desk = at_desk()
    for name in ("node-a", "node-b"):
        bench.add_node(name, cpu="1")
    for name in ("c", "d"):
        bench.ask(name, name, cpu="700m")
    settle(bench, desk)
    assert {bench.node_of("c"), bench.node_of("d")} == {"node-a", "node-b"}


def test_the_charge_of_what_was_refused_is_given_back() -> None:
    bench, desk = at_desk("node-a")
    wants(bench, "c")
    bench.run()
    assert bench.cluster.hosts.used("node-a")["cpu"] == 100
    on_write(bench, "resourceclaims", lambda: None, InvalidError("no", status=422))
    desk.work_off()
    bench.run()
    assert bench.cluster.hosts.used("node-a") == {}


def test_no_more_is_decided_than_can_soon_be_written() -> None:
    names = [f"node-{n}" for n in range(LIMIT + 4)]
    bench, desk = at_desk(*names)
    for name in names:
        wants(bench, name)
    bench.run()
    assert len(desk.jobs) == LIMIT
    assert bench.engine.next_due() is None
    desk.jobs.pop(0)()
    bench.run()
    assert len(desk.jobs) == LIMIT
    settle(bench, desk)
    assert all(bench.devices(name) for name in names)


def test_an_answer_that_is_not_understood_keeps_nobody_from_being_served() -> None:
    bench, desk = at_desk("node-a", "node-b")
    wants(bench, "c")
    bench.run()
    patch = bench.api.patch

    def mangled(*args: Any, **more: Any) -> Obj:
        return {"metadata": {"uid": patch(*args, **more)["metadata"]["uid"]}}

    bench.api.patch = mangled  # type: ignore[method-assign]
    desk.work_off()
    bench.api.patch = patch  # type: ignore[method-assign]
    wants(bench, "d")
    settle(bench, desk)
    assert bench.devices("d")


def test_senders_finish_what_they_began_and_drop_the_rest() -> None:
    senders = Senders(1)
    begun, go_on = threading.Event(), threading.Event()
    done: list[str] = []

    def slow() -> None:
        begun.set()
        go_on.wait(PATIENCE)
        done.append("slow")

    senders.send(slow)
    senders.send(lambda: done.append("never"))
    assert begun.wait(PATIENCE)
    closing = threading.Thread(target=senders.close)
    closing.start()
    go_on.set()
    closing.join(PATIENCE)
    assert done == ["slow"]
