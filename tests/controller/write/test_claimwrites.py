"""Writes that are refused, lost or out of date, and claims that are never written."""

from __future__ import annotations

import threading
from math import inf
from typing import Any

import pytest

from controller.write.in_flight import LIMIT, Senders
from dra.common.resources import Obj
from dra.kube.errors import ForbiddenError, InvalidError, KubeError, UnavailableError
from tests.controller.helpers.bench import Bench
from tests.controller.helpers.desk import at_desk, served_half, settle, wants, watch
from tests.controller.helpers.fakeapi import once
from tests.controller.helpers.objects import claim, device_class, pod, request, versioned
from tests.helpers.waiting import PATIENCE

STATUS = "resourceclaims/status"


def test_claims_that_are_not_ours_are_never_written() -> None:
    bench = Bench("node-a")
    bench.cluster.set_class(versioned(device_class("net", "device.driver == 'net.example.com'")))
    bench.claim(claim("foreign", request("r", "net")))
    bench.claim(claim("mixed", request("a"), request("b", "net")))
    for name in ("foreign", "mixed"):
        bench.pod(pod(name, name))
    bench.run()
    assert bench.api.writes == []
    assert bench.recorder.reasons("foreign") == []
    assert bench.recorder.reasons("mixed") == ["MixedDrivers", "MixedDrivers"]
    foreign = versioned(claim("other", request("r", "net")))
    foreign["status"] = {
        "allocation": {
            "devices": {
                "results": [
                    {"request": "r", "driver": "net.example.com", "pool": "x", "device": "y"}
                ]
            }
        }
    }
    bench.claim(foreign)
    bench.run(seconds=100)
    assert bench.api.writes == ["pods/status"]
    assert bench.condition("mixed")["reason"] == "MixedDrivers"


def test_a_write_that_may_have_been_made_counts_although_the_same_is_refused_later() -> None:
    bench = Bench("node-a")
    bench.ask("p", "c", request("r", "mig-7g.40gb"))
    bench.api.lost = once(STATUS, UnavailableError("no answer"))
    bench.run()
    refusals = [InvalidError("denied by a webhook", status=422)] * 2
    bench.api.refuse = lambda _: refusals.pop() if refusals else None
    bench.run(seconds=1)
    assert len(refusals) == 1
    bench.remove_pod("p")
    bench.serve("q", "d", request("r", "mig-7g.40gb"))
    assert bench.devices("c")
    assert bench.devices("d") == []


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (
            InvalidError('requires resource="resourceclaims/binding"', status=422),
            "ClusterRole with the verb patch on resourceclaims/binding",
        ),
        (InvalidError("status.allocation: too long", status=422), "too long"),
        (ForbiddenError("cannot patch resourceclaims/status", status=403), "resourceclaims/status"),
        (
            UnavailableError('Internal error: failed calling webhook "x.example.com"', status=500),
            'failed calling webhook "x.example.com"',
        ),
    ],
)
def test_a_refused_write_says_what_is_missing_and_is_tried_ever_more_rarely(
    error: KubeError, told: str
) -> None:
    bench = Bench("node-a")
    attempts = []

    def refuse(what: str) -> KubeError | None:
        attempts.append(what)
        return error if what == STATUS else None

    bench.api.refuse = refuse
    bench.ask("p", "c")
    for _ in range(120):
        bench.run(seconds=1)
    assert attempts.count(STATUS) < 15
    assert any(r == "AllocationRefused" and told in m for _, _, r, m in bench.recorder.events)


# -- writes under way: what they hold, what waits for them, and what their answers do


def test_no_more_is_decided_than_can_soon_be_written() -> None:
    names = [f"node-{n}" for n in range(LIMIT + 4)]
    bench, desk = at_desk(*names)
    for name in names:
        wants(bench, name)
    bench.run()
    assert len(desk.jobs) == LIMIT
    assert bench.engine.due == inf
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


# -- what others do between a request and its answer: to the claim, to the pod, to the leadership


def test_another_claim_of_the_same_name_is_not_taken_for_the_one_that_was_written() -> None:
    bench, desk = at_desk("node-a")
    wants(bench, "c")
    bench.run()
    desk.work_off()  # answered, but the answer is not taken before the claim is another
    other = claim("c", request("r", "mig-1g.5gb"))
    other["metadata"]["uid"] = "another"
    bench.claim(other)
    bench.run()
    known = bench.cluster.claims["default", "c"].claim
    assert (known.ref.uid, known.allocation) == ("another", None)


def test_a_deallocation_of_ours_that_is_watched_before_it_is_answered_is_nobodys_refusal() -> None:
    bench, desk = served_half()
    bench.run(seconds=1)
    desk.work_off()
    watch(bench, "one")
    settle(bench, desk)
    assert bench.node_of("one") == bench.node_of("two") == "node-b"
    assert "AllocationTakenBack" not in bench.recorder.reasons("one")
