"""Templates that a tenant's pods name: how many there are, and what they cost others."""

from __future__ import annotations

import pytest

from controller import times
from controller.keep.templates import MOST
from dra.kube.errors import ForbiddenError
from tests.controller.helpers.bench import Bench
from tests.controller.helpers.desk import at_desk, settle
from tests.controller.helpers.limit_templates import TEMPLATES, made, namespace, of_classes, waiting

SIZES = [f"nvidia.com-gpumem-{1000 + n}" for n in range(MOST + 6)]
MIB = "nvidia.com-gpumem-8000"


def opted_in(*nodes: str) -> Bench:
    bench = Bench(*nodes)
    bench.cluster.set_namespace(namespace())
    bench.run()
    return bench


def full(sizes: list[str]) -> Bench:
    """A namespace in which a pod waits for each of ``sizes``."""
    bench = opted_in("node-a")
    for size in sizes:
        bench.pod(waiting(size, size))
        bench.run()
    return bench


def odd(bench: Bench) -> set[str]:
    """Templates besides those of profiles."""
    return made(bench) - of_classes(bench)


def test_a_namespace_has_so_many_and_whoever_names_another_is_told_what_to_do() -> None:
    bench = full(SIZES)
    assert odd(bench) == set(SIZES[:MOST])
    for name in SIZES[MOST:]:
        assert bench.recorder.reasons(name) == ["TooManyTemplates"]
    message = next(m for _, name, _, m in bench.recorder.events if name == SIZES[-1])
    for part in (SIZES[-1], "namespace default has 64", "round nvidia.com/gpumem up", "end pods"):
        assert part in message
    bench.run(seconds=300)
    late = waiting("late", SIZES[-1])
    bench.pod(late)
    bench.run()
    assert bench.recorder.reasons("late") == ["TooManyTemplates"]
    told = [name for _, name, reason, _ in bench.recorder.events if reason == "TooManyTemplates"]
    assert len(told) == 7, "each pod is told once"


def test_profiles_that_nodes_have_need_no_room() -> None:
    bench = full(SIZES)
    del bench.api.objects[TEMPLATES, "nvidia.com-mig-1g.5gb"]
    bench.cluster.templates.remove(("default", "nvidia.com-mig-1g.5gb"))
    bench.run()
    assert of_classes(bench) <= made(bench)


@pytest.mark.parametrize("phase", ["Succeeded", "gone"])
def test_a_minute_after_the_last_pod_of_one_has_ended_another_takes_its_place(phase: str) -> None:
    bench = full(SIZES)
    bench.api.writes.clear()
    if phase == "gone":
        bench.remove_pod(SIZES[3])
    else:
        bench.pod({**waiting(SIZES[3], SIZES[3]), "status": {"phase": phase}})
    bench.run()
    bench.run(seconds=times.UNUSED_WHERE_FULL - 1)
    assert odd(bench) == set(SIZES[:MOST])
    bench.run(seconds=1)
    assert odd(bench) == {*SIZES[: MOST + 1]} - {SIZES[3]}
    assert bench.api.writes == [TEMPLATES]


def test_what_nobody_names_makes_room_oldest_first_and_what_a_pod_names_again_stays() -> None:
    bench = full(SIZES[:MOST])
    for number in (5, 6, 7):
        bench.remove_pod(SIZES[number])
        bench.run(seconds=1)
    bench.pod(waiting("again", SIZES[5]))
    bench.run(seconds=times.UNUSED_WHERE_FULL)
    bench.pod(waiting("new", MIB))
    bench.run()
    assert odd(bench) == {*SIZES[:MOST], MIB} - {SIZES[6]}
    assert bench.recorder.reasons("new") == []


def test_of_ever_new_amounts_few_are_written_and_none_that_no_pod_waits_for_any_more() -> None:
    bench, desk = at_desk("node-a")
    bench.cluster.set_namespace(namespace())
    settle(bench, desk)
    bench.api.writes.clear()
    for number in range(200):
        bench.pod(waiting("churn", f"nvidia.com-gpumem-{number + 1}"))
        bench.run()
        bench.remove_pod("churn")
    settle(bench, desk)
    assert len(bench.api.writes) == 1
    for number in range(200):
        bench.pod(waiting("churn", f"nvidia.com-gpumem-{number + 1}"))
        settle(bench, desk)
        bench.remove_pod("churn")
    assert len(odd(bench)) == MOST
    assert len(bench.api.writes) == MOST


def test_templates_that_users_mark_as_ours_take_no_room() -> None:
    bench = opted_in("node-a")
    for number in range(MOST):
        metadata = {"namespace": "default", "name": f"theirs-{number}", "uid": f"u{number}"}
        bench.cluster.templates.set({"metadata": metadata})
    bench.pod(waiting("p", MIB))
    bench.run()
    assert MIB in made(bench)


def test_namespaces_take_turns() -> None:
    bench, desk = at_desk("node-a")
    for name in ("one", "two"):
        bench.cluster.set_namespace(namespace(name))
    settle(bench, desk)
    for name, size in [*(("one", each) for each in SIZES[:20]), ("two", MIB)]:
        body = waiting(size, size)
        body["metadata"] |= {"namespace": name, "uid": f"{name}-{size}"}
        bench.cluster.set_pod(body)
    bench.run()
    for _ in range(2):
        desk.jobs.pop(0)()
        bench.run()
    assert MIB in made(bench)


def test_refusals_in_one_namespace_are_no_pause_for_another() -> None:
    bench = Bench("node-a")
    bench.api.refuse = lambda what: ForbiddenError("exceeded quota") if what == TEMPLATES else None
    bench.cluster.set_namespace(namespace("one"))
    for _ in range(8):
        bench.run(seconds=60)
    assert made(bench) == set()
    bench.api.refuse = lambda _: None
    bench.cluster.set_namespace(namespace("two"))
    bench.run()
    assert made(bench) == of_classes(bench)
