"""Gangs in the controller: all of a gang's pods get their slices, or none does."""

from __future__ import annotations

from typing import Any

from dra.common.resources import RESOURCE_CLAIMS
from dra.gangs.membership import COUNT_LABEL, NAME_LABEL
from dra.kube.errors import UnavailableError
from tests.controller.allocator.nodes.test_preemption import other, site
from tests.controller.helpers.bench import Bench
from tests.controller.helpers.desk import STATUS, Desk, at_desk, settle, wants, watch
from tests.controller.helpers.fakeapi import once
from tests.controller.helpers.objects import FINALIZER, claim, pod, request
from tests.controller.serve.gangs.gangpods import NODES, create, delete, held, refuse, told
from tests.controller.world.worldchecks import check_held_once


def test_gates_are_lifted_once_all_have_their_slices() -> None:
    desk = Desk()
    bench = Bench(*NODES, send=desk.send)
    create(bench, "a", 0, 1, 2, 3, schedulingGates=[{"name": FINALIZER}])
    bench.run()

    def gated() -> int:
        pods = (o for (kind, _), o in bench.api.objects.items() if kind == "pods")
        return sum(bool(p["spec"]["schedulingGates"]) for p in pods)

    while len(held(bench, "a")) < 4:
        assert gated() == 4
        desk.jobs.pop(0)()
        bench.run()
    desk.work_off()
    for (kind, _), obj in [*bench.api.objects.items()]:
        if kind == "resourceclaims":
            bench.cluster.set_claim(obj)
    bench.run()
    desk.work_off()
    bench.run()
    assert gated() == 0


def test_other_gates_keep_a_pod_from_being_counted() -> None:
    bench = Bench(*NODES)
    create(bench, "a", 0, 1, 2)
    create(bench, "a", 3, schedulingGates=[{"name": "kueue.x-k8s.io/admission"}])
    bench.run()
    assert not held(bench, "a")
    assert "there are 3" in told(bench, "a-0")
    body = dict(bench.api.objects["pods", "a-3"])
    body["spec"] = {**body["spec"], "schedulingGates": []}
    bench.pod(body)
    bench.run()
    assert len(held(bench, "a")) == 4


def test_a_gang_that_cannot_become_whole_gives_back_what_it_has() -> None:
    bench = Bench(*NODES)
    create(bench, "a", *range(4))

    allowed = refuse(bench, "a-3")
    bench.run()
    assert len(held(bench, "a")) == 3
    for _ in range(8):
        bench.run(seconds=5.0)
    assert not held(bench, "a")
    bench.run(seconds=5.0)
    assert not held(bench, "a"), "it rests"
    allowed()
    for _ in range(8):
        bench.run(seconds=5.0)
    assert len(held(bench, "a")) == 4


def test_at_once_where_somebody_else_took_the_room_of_the_last() -> None:
    bench = Bench("node-a", "node-b")
    create(bench, "a", *range(4))

    allowed = refuse(bench, "a-3")
    bench.run()
    assert len(held(bench, "a")) == 3
    bench.serve("p", "c", request("r", "mig-3g.20gb"))
    allowed()
    for _ in range(3):
        bench.run(seconds=1.0)
    assert bench.devices("c")
    assert not held(bench, "a")


def test_a_pod_that_is_deleted_before_it_is_bound_takes_the_others_with_it() -> None:
    bench = Bench(*NODES)
    create(bench, "a", *range(4))
    bench.run()
    assert len(held(bench, "a")) == 4
    delete(bench, "a", 0)
    assert len(held(bench, "a")) == 3, "somebody else may come"
    for _ in range(4):
        bench.run(seconds=10.0)
    assert not held(bench, "a")
    assert "there are 3" in told(bench, "a-1")
    create(bench, "a", 7)
    bench.run(seconds=60.0)
    bench.run()
    assert len(held(bench, "a")) == 4


def test_pods_that_differ_about_the_size_wait_and_it_is_said() -> None:
    bench = Bench(*NODES)
    create(bench, "a", 0, 1, size="2")
    bench.run()
    assert len(held(bench, "a")) == 2
    create(bench, "b", 0, size="2")
    create(bench, "b", 1, size="1")
    bench.run()
    assert not held(bench, "b")
    assert "differ in label" in told(bench, "b-0")
    assert "differ in label" in told(bench, "b-1")


# -- writes for pods of gangs whose answers were lost: what they may have given stays theirs


def test_what_a_lost_answer_may_have_given_to_a_gang_is_given_to_nobody_else() -> None:
    bench, desk = at_desk("node-a")
    body = pod("a-0", "x", "y")
    body["metadata"]["labels"] = {NAME_LABEL: "a", COUNT_LABEL: "2"}
    for name in ("x", "y"):
        bench.claim(claim(name, request("r", "mig-1g.5gb")))
    bench.pod(body)
    create(bench, "a", 1, size="2", profile="1g.5gb")
    bench.run()
    bench.api.lost = once(STATUS, UnavailableError("no answer"))
    desk.work_off()
    assert bench.devices("x"), "stored, but neither the answer nor the watch has told it"
    bench.run()
    create(bench, "a", 2, size="2", profile="1g.5gb")  # the gang is decided anew
    bench.run(seconds=1.0)
    for number in range(3):
        wants(bench, f"p-{number}", "1g.5gb")
    settle(bench, desk)
    watch(bench, "x")
    settle(bench, desk, seconds=1.0)
    objects = bench.api.objects.items()
    claims = [(n, o) for (kind, n), o in objects if kind == RESOURCE_CLAIMS.plural]
    check_held_once(claims)
    assert all(bench.devices(name) for name in ("x", "y", "a-1", "p-2"))


# -- a gang of high priority is allocated where kube-scheduler would end others for its pods


def ask(made: Bench, *numbers: int, cpu: str = "2", priority: int = 100, **spec: Any) -> None:
    size = str(len(numbers))
    create(made, "a", *numbers, size=size, profile="1g.5gb", cpu=cpu, priority=priority, **spec)
    made.run()


def test_it_goes_where_lower_priorities_fill_the_cpu() -> None:
    made = site("a", "b")
    for where in ("a", "b"):
        other(made, f"on-{where}", where, cpu="4")
    ask(made, 0, 1, cpu="3")
    assert {made.node_of(name) for name in held(made, "a")} == {"a", "b"}
