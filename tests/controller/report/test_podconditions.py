"""The condition of pods that wait: said in time, seldom, and taken back."""

from __future__ import annotations

import pytest

from controller import times
from dra.common.resources import PODS
from dra.kube.errors import ForbiddenError, InvalidError, KubeError, UnavailableError
from tests.controller.helpers.bench import Bench
from tests.controller.helpers.objects import claim, device_class, pod, request, versioned

LARGE = request("r", "mig-7g.40gb")
OWN_CLASS = "mig-9g.99gb"
"""Not generated, so that it stays away once it is removed."""


def waiting(*, pods: int = 1) -> Bench:
    """A full GPU, and pods that wait for it."""
    bench = Bench("node-a")
    bench.cluster.set_class(versioned(device_class(OWN_CLASS, "device.driver == 'mig.dra.dev'")))
    bench.serve("holder", "all", LARGE)
    bench.bind("holder", "node-a")
    for number in range(pods):
        bench.ask(f"p{number}", f"c{number}", request("r", OWN_CLASS))
    bench.run()
    return bench


def writes(bench: Bench) -> int:
    return bench.api.writes.count("pods/status")


def test_a_pod_that_waits_says_why_and_then_that_it_no_longer_does() -> None:
    bench = waiting()
    assert bench.condition("p0") == {}
    bench.run(seconds=2.0)
    told = bench.condition("p0")
    assert (told["status"], told["reason"]) == ("False", "WaitingForSlice")
    assert "blocked by claim default/all" in told["message"]
    assert told["lastTransitionTime"] == "2026-01-01T00:00:02Z"
    bench.delete_pod("holder")
    bench.run(seconds=10.0)
    told = bench.condition("p0")
    assert bench.devices("c0")
    assert (told["status"], told["reason"], told["message"]) == ("True", "Allocated", "")
    assert told["lastTransitionTime"] == "2026-01-01T00:00:12Z"
    assert writes(bench) == 2


def test_other_details_are_said_seldom_and_another_reason_at_once() -> None:
    bench = waiting()
    bench.run(seconds=2.0)
    first = bench.condition("p0")
    bench.cluster.set_pod(bench.api.get(PODS, "p0"))
    bench.delete_pod("holder")
    bench.ask("other", "other", LARGE, priority=1)
    bench.run(seconds=10.0)
    bench.run(seconds=10.0)
    assert bench.devices("other")
    assert bench.condition("p0") == first
    bench.run(seconds=60.0)
    bench.run(seconds=2.0)
    assert "default/other" in bench.condition("p0")["message"]
    assert bench.condition("p0")["lastTransitionTime"] == first["lastTransitionTime"]
    bench.cluster.remove_class(OWN_CLASS)
    bench.run(seconds=1.0)
    bench.run(seconds=2.0)
    assert bench.condition("p0")["reason"] == "NoSuchDeviceClass"
    assert writes(bench) == 3


@pytest.mark.parametrize(
    ("error", "again"),
    [
        (UnavailableError("no answer"), 5.0),
        (ForbiddenError("pods/status is forbidden", status=403), 600.0),
        (InvalidError("no such field", status=422), 0.0),
    ],
)
def test_what_cannot_be_written_costs_nothing_else(error: KubeError, again: float) -> None:
    bench = waiting(pods=2)
    bench.api.refuse = lambda what: error if what == "pods/status" else None
    bench.run(seconds=2.0)
    bench.api.refuse = lambda _: None
    bench.run(seconds=1.0)
    assert writes(bench) == (0 if again else 1)
    bench.run(seconds=again)
    bench.run(seconds=1.0)
    assert writes(bench) == (2 if isinstance(error, UnavailableError) else 1)
    bench.delete_pod("holder")
    bench.run(seconds=1.0)
    assert bench.devices("c0")


def test_thousands_of_pods_of_one_namespace_do_not_delay_the_conditions_of_another() -> None:
    bench = waiting(pods=100)
    lone = claim("lone", request("r", OWN_CLASS))
    lone["metadata"]["namespace"] = "other"
    alone = pod("alone", "lone")
    alone["metadata"]["namespace"] = "other"
    bench.claim(lone)
    bench.pod(alone)
    bench.run()
    bench.run(seconds=times.CONDITION)
    bench.run(seconds=2 * times.CONDITION_GAP)
    bench.run(seconds=2 * times.CONDITION_GAP)
    assert bench.condition("alone")["reason"] == "WaitingForSlice"
    assert writes(bench) <= 3


def test_a_new_leader_repeats_nothing_that_the_pod_says_already() -> None:
    bench = waiting()
    bench.run(seconds=2.0)
    successor = Bench("node-a")
    successor.cluster.set_class(bench.cluster.class_objects[OWN_CLASS])
    for name in ("all", "c0"):
        successor.claim(bench.api.objects["resourceclaims", name])
    for name in ("holder", "p0"):
        successor.pod(bench.api.get(PODS, name))
    successor.run()
    successor.run(seconds=30.0)
    assert successor.recorder.reasons("p0") == ["WaitingForSlice"]
    assert writes(successor) == 0
    successor.delete_pod("holder")
    successor.run(seconds=10.0)
    assert successor.condition("p0")["status"] == "True"
