"""Classes are ours by what they select, which the sandbox has to say first."""

from __future__ import annotations

import pytest

from controller import times
from dra.common.resources import Obj
from dra.sandbox.process import SandboxError
from tests.controller.helpers.bench import Bench
from tests.controller.helpers.desk import Desk
from tests.controller.helpers.objects import (
    DRIVER,
    FINALIZER,
    claim,
    device_class,
    pod,
    request,
    versioned,
)
from tests.controller.serve.test_evaluations import Costing, answer_all

THEIRS = f"device.driver != '{DRIVER}'"


def site(evaluator: Costing, *, at_creation: bool = False) -> tuple[Bench, Desk]:
    """A bench with class ``theirs``, whose questions lie on a desk until they are answered."""
    asking = Desk()
    bench = Bench(
        "node-a", evaluator=evaluator, asking=asking.send, finalizer_at_creation=at_creation
    )
    bench.cluster.set_class(versioned(device_class("theirs", THEIRS)))
    return bench, asking


def born(name: str, device: str) -> Obj:
    body = claim(name, request("r", device))
    body["metadata"]["finalizers"] = [FINALIZER]
    return body


def test_a_pod_waits_until_it_is_known_whose_its_class_is() -> None:
    bench, asking = site(Costing())
    for name, device in (("ours", "mig-1g.5gb"), ("p", "theirs")):
        bench.ask(name, name, request("r", device))
    bench.run()
    assert bench.devices("ours") == []
    assert bench.api.writes == []
    answer_all(bench, asking)
    assert bench.devices("ours")
    assert bench.devices("p") == []
    assert bench.recorder.reasons("p") == [], "kube-scheduler says what there is to say"


@pytest.mark.parametrize("used", [True, False])
def test_a_finalizer_stays_until_it_is_known_whose_the_class_is(*, used: bool) -> None:
    evaluator = Costing()
    bench, asking = site(evaluator, at_creation=True)
    evaluator.error = SandboxError("it is being restarted")
    names = {"ours": "mig-1g.5gb", "other": "theirs"}
    for name, device in names.items():
        bench.claim(born(name, device))
        if used and name == "other":
            bench.pod(pod(name, name))
    for _ in range(5):
        answer_all(bench, asking)
        bench.run(seconds=times.CLASS_UNKNOWN)
    assert [bench.finalizers(name) for name in names] == [[FINALIZER]] * 2
    evaluator.error = None
    for _ in range(5):
        bench.run(seconds=times.CLASS_UNKNOWN)
        answer_all(bench, asking)
    assert [bench.finalizers(name) for name in names] == [[FINALIZER], []]


def test_a_gated_pod_hears_that_its_class_is_not_ours_alone() -> None:
    bench, asking = site(Costing())
    bench.ask("p", "c", request("r", "theirs"), schedulingGates=[{"name": FINALIZER}])
    answer_all(bench, asking)
    (message, *_) = [m for _, name, _, m in bench.recorder.events if name == "p"]
    assert "DeviceClass 'theirs' selects devices of other drivers too" in message
    assert f"device.driver == '{DRIVER}' alone" in message
