"""Writes under way: what happens to the cluster between a request and its answer."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import Any

import pytest

from controller.flights import LIMIT
from controller.outbox import Senders
from controller.writer import NotLeadingError
from dra.kube.errors import (
    ConflictError,
    InvalidError,
    KubeError,
    NotFoundError,
    UnavailableError,
)
from dra.kube.resources import PODS, RESOURCE_CLAIMS
from tests.controller.bench import Bench, from_the_second
from tests.controller.objects import (
    FINALIZER,
    claim,
    gpu,
    instance,
    mignode,
    node,
    pod,
    request,
)
from tests.waiting import PATIENCE

Obj = dict[str, Any]
STATUS = "resourceclaims/status"


class Desk:
    """An outbox on which jobs lie until they are told to be done."""

    def __init__(self) -> None:
        self.jobs: list[Callable[[], None]] = []
        self.sent = 0

    def send(self, job: Callable[[], None]) -> None:
        self.jobs.append(job)
        self.sent += 1

    def work_off(self) -> None:
        while self.jobs:
            self.jobs.pop(0)()


def at_desk(*nodes: str) -> tuple[Bench, Desk]:
    desk = Desk()
    bench = Bench(outbox=desk)
    for name in nodes:
        bench.cluster.set_node(node(name))
        bench.cluster.set_mignode(mignode(name))
    bench.run()
    bench.api.writes.clear()
    return bench, desk


def settle(bench: Bench, desk: Desk, *, seconds: float = 0.0) -> None:
    """Let all jobs be done and their answers be taken, until nothing is left to do."""
    bench.run(seconds=seconds)
    while desk.jobs:
        desk.work_off()
        bench.run()


def wants(bench: Bench, name: str, profile: str = "7g.40gb", **spec: Any) -> None:
    bench.claim(claim(name, request("r", f"mig-{profile}")))
    bench.pod(pod(name, name, **spec))


def watch(bench: Bench, name: str) -> None:
    """The watch brings a claim's present state."""
    bench.cluster.set_claim(bench.api.get(RESOURCE_CLAIMS, name))


def on_write(
    bench: Bench, what: str, act: Callable[[], None], error: KubeError | None = None
) -> None:
    """Something happens just before the first write of that kind, which is then refused or not."""
    left = [act]

    def refuse(write: str) -> KubeError | None:
        if write != what or not left:
            return None
        left.pop()()
        return error

    bench.api.refuse = refuse


def after_write(bench: Bench, what: str, act: Callable[[], None]) -> None:
    """Something happens between the first write of that kind and its answer."""
    left = [act]

    def stored(write: str) -> None:
        if write == what and left:
            left.pop()()

    bench.api.lost = stored


def test_what_is_being_written_is_given_to_nobody_else() -> None:
    bench, desk = at_desk("node-a")
    wants(bench, "c")
    bench.run()
    wants(bench, "d")
    bench.run()
    assert bench.api.writes == []
    assert "blocked by claim default/c" in bench.recorder.events[-1][3]
    settle(bench, desk)
    assert bench.devices("c")
    assert not bench.devices("d")


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


def test_a_claim_that_changes_meanwhile_is_decided_anew() -> None:
    bench, desk = at_desk("node-a", "node-b")
    wants(bench, "c")
    bench.run()

    def change() -> None:
        bench.api.put(RESOURCE_CLAIMS, bench.api.get(RESOURCE_CLAIMS, "c"))

    on_write(bench, STATUS, change)
    settle(bench, desk)
    assert not bench.devices("c")
    watch(bench, "c")
    settle(bench, desk, seconds=1)
    assert bench.devices("c")
    assert bench.api.writes == ["resourceclaims", STATUS]


def test_the_watch_may_bring_the_finalizer_before_the_allocation_is_answered() -> None:
    bench, desk = at_desk("node-a")
    wants(bench, "c")
    bench.run()

    def meanwhile() -> None:
        watch(bench, "c")
        wants(bench, "d")
        bench.run()

    on_write(bench, STATUS, meanwhile)
    settle(bench, desk)
    assert bench.devices("c")
    assert not bench.devices("d")


def test_a_claim_that_goes_meanwhile_is_forgotten_and_its_place_is_free() -> None:
    bench, desk = at_desk("node-a")
    wants(bench, "c")
    bench.run()

    def gone() -> None:
        del bench.api.objects["resourceclaims", "c"]
        bench.cluster.remove_claim(("default", "c"))

    on_write(bench, STATUS, gone, NotFoundError("gone", status=404))
    settle(bench, desk)
    assert ("default", "c") not in bench.cluster.claims
    wants(bench, "d")
    settle(bench, desk)
    assert bench.devices("d")


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


def test_a_pod_that_goes_meanwhile_leaves_a_claim_that_is_freed() -> None:
    bench, desk = at_desk("node-a")
    wants(bench, "c")
    bench.run()
    bench.delete_pod("c")
    bench.run()
    settle(bench, desk)
    assert bench.devices("c")
    bench.end_reservations()
    bench.run()
    settle(bench, desk)
    assert bench.api.writes.count(STATUS) == 2
    assert not bench.devices("c")
    assert bench.finalizers("c") == []


def test_nothing_more_is_written_when_leadership_is_lost_between_two_requests() -> None:
    bench, desk = at_desk("node-a")
    wants(bench, "c", schedulingGates=[{"name": FINALIZER}])
    wants(bench, "d")
    bench.run()

    def stored() -> KubeError | None:
        bench.leads = False
        return None

    bench.api.lost = lambda _: stored()
    desk.work_off()
    with pytest.raises(NotLeadingError):
        bench.run()
    assert bench.api.writes == ["resourceclaims"]


def test_an_allocation_that_is_taken_back_before_it_is_answered_goes_elsewhere() -> None:
    bench, desk = at_desk("node-a", "node-b")
    wants(bench, "c")
    bench.run()
    desk.work_off()
    watch(bench, "c")
    bench.change_claim("c", allocation=None)
    settle(bench, desk)
    assert bench.node_of("c") == "node-b"
    assert bench.recorder.reasons("c").count("AllocationTakenBack") == 1


def test_what_is_taken_back_and_looked_at_before_the_answer_goes_elsewhere() -> None:
    bench, desk = at_desk("node-a", "node-b")
    wants(bench, "c")
    bench.run()

    def meanwhile() -> None:
        watch(bench, "c")
        bench.change_claim("c", allocation=None, reservedFor=None)
        bench.run()

    after_write(bench, STATUS, meanwhile)
    settle(bench, desk)
    assert bench.node_of("c") == "node-b"


def test_a_claim_that_is_deleted_before_its_deallocation_is_answered_is_released() -> None:
    bench, desk = at_desk("node-a")
    wants(bench, "c")
    settle(bench, desk)
    bench.delete_pod("c")

    def deleted() -> None:
        obj = copy.deepcopy(bench.api.get(RESOURCE_CLAIMS, "c"))
        obj["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        bench.claim(obj)
        bench.run()

    after_write(bench, STATUS, deleted)
    settle(bench, desk)
    assert bench.finalizers("c") == []


def test_a_deallocation_of_ours_that_is_watched_before_it_is_answered_is_nobodys_refusal() -> None:
    bench, desk = at_desk("node-a", "node-b")
    for name in ("one", "two"):
        bench.claim(claim(name, request("r", "mig-3g.20gb")))
    bench.pod(pod("p", "one", "two"))
    bench.run()
    bench.api.refuse = from_the_second(STATUS, ConflictError("somebody was faster", status=409))
    settle(bench, desk)
    assert bench.node_of("one") == "node-a"
    bench.api.refuse = lambda _: None
    bench.change_claim("two")
    taken = gpu(0, instances=(instance("3g.20gb", 0), instance("1g.5gb", 5)))
    bench.cluster.set_mignode(mignode("node-a", taken))
    bench.run(seconds=1)
    desk.work_off()
    watch(bench, "one")
    settle(bench, desk)
    assert bench.node_of("one") == bench.node_of("two") == "node-b"
    assert "AllocationTakenBack" not in bench.recorder.reasons("one")


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
    bench.claim(claim("c"))
    bench.pod(pod("p1", "c"))
    bench.run()
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
        bench.cluster.set_node(node(name, cpu="1"))
        bench.cluster.set_mignode(mignode(name))
    for name in ("c", "d"):
        bench.claim(claim(name))
        bench.pod(pod(name, name, cpu="700m"))
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


def test_a_state_that_the_watch_brings_late_does_not_undo_an_answer() -> None:
    bench, desk = at_desk("node-a")
    wants(bench, "c")
    bench.run()
    before = copy.deepcopy(bench.api.get(RESOURCE_CLAIMS, "c"))
    settle(bench, desk)
    bench.cluster.set_claim(before)
    wants(bench, "d")
    settle(bench, desk)
    assert bench.devices("c")
    assert not bench.devices("d")
