"""kube-scheduler is told of pods that it refused before they were allocated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from controller import times
from dra.common.resources import PODS, Obj
from dra.kube.errors import ForbiddenError, KubeError, UnavailableError
from tests.controller.helpers.bench import Bench
from tests.controller.helpers.desk import at_desk, settle
from tests.controller.helpers.fakeapi import from_the_second, once
from tests.controller.helpers.objects import claim, pod, versioned

TOLD = ["pods/status", "pods/status"]


def site(*, filled: str = "4") -> Bench:
    """A node with four processors, ``filled`` by a pod of no priority."""
    made = Bench()
    made.add_node("a", cpu="4")
    made.cluster.set_pod(versioned(pod("low", cpu=filled, nodeName="a")))
    made.run()
    return made


def ask(made: Bench, **spec: Any) -> Obj:
    made.claim(claim("p"))
    body = made.pod(pod("p", "p", **{"cpu": "2", "priority": 100, **spec}))
    made.run()
    return body


def told(made: Bench, *, seconds: float = times.SCHEDULER_PREEMPTS) -> list[str]:
    """The writes to statuses of pods in that time."""
    made.api.writes.clear()
    made.run(seconds=seconds)
    return [what for what in made.api.writes if what == "pods/status"]


def test_a_pod_that_others_have_to_end_for_is_nominated_for_a_moment() -> None:
    made = site()
    ask(made)
    assert made.node_of("p") == "a"
    seen: list[str | None] = []

    def see(_: str) -> None:
        seen.append(made.api.get(PODS, "p")["status"].get("nominatedNodeName"))

    made.api.lost = see
    assert told(made) == TOLD
    assert seen == ["a", None]


def test_without_the_permission_nobody_is_told_and_it_is_no_fault_of_the_pod() -> None:
    made = site()
    ask(made)
    made.api.refuse = lambda _: ForbiddenError("no", status=403)
    assert told(made, seconds=times.NOMINATION_AGAIN[0]) == []
    assert set(made.recorder.reasons("p")) == {"Allocated"}


@pytest.mark.parametrize("arrives", [True, False])
@pytest.mark.parametrize("fails", [once, from_the_second])
def test_no_nomination_is_left_behind_by_a_write_without_answer(
    fails: Callable[[str, KubeError], Callable[[str], KubeError | None]], *, arrives: bool
) -> None:
    made = site()
    ask(made)
    trouble = fails("pods/status", UnavailableError("no answer"))
    if arrives:
        made.api.lost = trouble
    else:
        made.api.refuse = trouble
    told(made)
    made.api.refuse = made.api.lost = lambda _: None
    made.run(seconds=10)
    assert "nominatedNodeName" not in made.api.get(PODS, "p").get("status", {})


class Crowd:
    """A full node for each of some pods, which are allocated there, of these priorities."""

    def __init__(self, *priorities: int) -> None:
        self.nominated: list[str] = []
        self._heard: dict[str, str] = {}
        self.bench, self.desk = at_desk()
        self.bench.api.lost = self._see
        for number, priority in enumerate(priorities):
            name, where = f"p{number}", f"n{number}"
            self.bench.add_node(where, cpu="4", labels={"is": where})
            self.bench.cluster.set_pod(versioned(pod(f"low-{number}", cpu="4", nodeName=where)))
            self.bench.claim(claim(name))
            there = {"is": where}
            self.bench.pod(pod(name, name, cpu="3", priority=priority, nodeSelector=there))
        self.run()
        assert all(self.bench.node_of(f"p{n}") == f"n{n}" for n in range(len(priorities)))

    def run(self, *, seconds: float = 0.0) -> list[str]:
        """Let time pass; returns the pods that were nominated."""
        self.nominated.clear()
        settle(self.bench, self.desk, seconds=seconds)
        return self.nominated

    def hear(self, name: str, node_name: str | None) -> None:
        """A pod is nominated by kube-scheduler, or by nobody."""
        body = self.bench.api.get(PODS, name)
        self._heard[name] = node_name or ""
        said = {"nominatedNodeName": node_name} if node_name else {}
        self.bench.pod({**body, "status": {"phase": "Pending", **said}})

    def _see(self, what: str) -> None:
        for (plural, name), obj in self.bench.api.objects.items():
            said = obj.get("status", {}).get("nominatedNodeName", "")
            if (what, plural) == ("pods/status", "pods") and said not in (
                "",
                self._heard.get(name),
            ):
                self.nominated.append(name)


def test_those_of_higher_priority_are_told_of_besides() -> None:
    crowd = Crowd(100, 100, 200)
    crowd.bench.run(seconds=times.SCHEDULER_PREEMPTS / 2)
    crowd.hear("p2", "n2")
    assert crowd.run(seconds=times.SCHEDULER_PREEMPTS / 2) == ["p0"]
    crowd.hear("p2", None)
    assert crowd.run(seconds=times.SCHEDULER_PREEMPTS / 2) == ["p2"]
