"""Pods that kube-scheduler binds only once their slices are made: what is written, and given back.

kube-scheduler's part is played by hand; ``tests/cluster/creation/test_made_first.py`` has the real
one.
"""

from __future__ import annotations

from typing import Any

import pytest

from controller import times
from dra.claims.conditions import SLICE_MADE, SLICE_NOT_MADE
from dra.common.resources import RESOURCE_CLAIMS, Obj
from dra.gpu.inventory import SETS_CONDITIONS
from tests.controller.helpers.bench import Bench
from tests.controller.helpers.objects import DRIVER, claim, gpu, mignode, node, pod, request
from tests.controller.helpers.stored import Stored

TRIM = Stored(RESOURCE_CLAIMS)
CONDITIONS = {"bindingConditions": [SLICE_MADE], "bindingFailureConditions": [SLICE_NOT_MADE]}
WAITING = "WaitingForSlice"
RESERVED = [{"resource": "pods", "name": "p", "uid": "uid-p"}]


def wish(bind_when: str = "made") -> list[Obj]:
    parameters = {
        "apiVersion": "mig.dra.dev/v1alpha1",
        "kind": "MigDeviceConfig",
        "preparation": {"bindWhen": bind_when},
    }
    return [{"opaque": {"driver": DRIVER, "parameters": parameters}}]


def site(*nodes: str, able: bool = True, **options: Any) -> Bench:
    bench = Bench(*nodes, **options)
    for name in nodes:
        told = mignode(name, gpu(0, name), gpu(1, name, mig=False))
        told["status"]["capabilities"] = [SETS_CONDITIONS] * able
        bench.cluster.set_mignode(told)
    return bench


def asked(bench: Bench, config: list[Obj] | None = None, profile: str = "mig-1g.5gb") -> Obj:
    """The status of a claim of a pod, after all that is due."""
    bench.claim(claim("c", request("r", profile), config=config))
    bench.pod(pod("p", "c"))
    bench.run()
    found: Obj = bench.api.get(RESOURCE_CLAIMS, "c")["status"]
    return found


def conditions(status: Obj) -> Obj:
    (result,) = status["allocation"]["devices"]["results"]
    return {key: value for key, value in result.items() if key.startswith("binding")}


@pytest.mark.parametrize(
    ("bench", "config", "profile", "awaits"),
    [
        (site("node-a"), wish(), "mig-1g.5gb", True),
        (site("node-a"), wish("allocated"), "mig-1g.5gb", False),
        (site("node-a"), None, "mig-1g.5gb", False),
        (site("node-a"), wish(), "gpu.dra.dev", False),
        (site("node-a", able=False), wish(), "mig-1g.5gb", False),
        (site("node-a", eager_creation=False), wish(), "mig-1g.5gb", False),
    ],
    ids=["asked", "not asked", "not said", "a whole GPU", "a node that says nothing", "no labels"],
)
def test_slices_have_conditions_if_asked_for_and_their_node_sets_them(
    bench: Bench, config: list[Obj] | None, profile: str, *, awaits: bool
) -> None:
    status = asked(bench, config, profile)
    assert conditions(status) == (CONDITIONS if awaits else {})
    reserved = [each["uid"] for each in status.get("reservedFor", [])]
    assert reserved == ([] if awaits else ["uid-p"]), "kube-scheduler reserves while it waits"


@pytest.mark.parametrize(("gpu_name", "awaits"), [("gpu-0", True), ("gpu-1", False)])
def test_on_a_gpu_where_a_slice_could_not_be_made_lately_they_have_conditions_unasked(
    gpu_name: str,
    awaits: bool,  # noqa: FBT001 - a row
) -> None:
    bench = site("node-a")
    bench.world.refusals.leave_out("node-a", gpu_name)
    bench.run(seconds=times.GPU_FAILED[0])
    assert conditions(asked(bench)) == (CONDITIONS if awaits else {})


def test_the_pod_is_told_the_words_of_the_node_that_is_left_out() -> None:
    bench = site("node-a")
    asked(bench, wish())
    tell(bench, state=SLICE_NOT_MADE, reserved=False)
    told = [m for kind, _, reason, m in bench.recorder.events if (kind, reason) == ("Pod", WAITING)]
    assert any("it is broken" in message for message in told)


@pytest.mark.parametrize("told", ["Prepared", "XidError"])
def test_a_gpu_on_which_one_was_made_then_is_as_any_other(told: str) -> None:
    bench = site("node-a")
    bench.world.refusals.leave_out("node-a", "gpu-0")
    bench.run(seconds=times.GPU_FAILED[0])
    asked(bench)
    tell(bench, state="Ready", reason=told)
    bench.claim(claim("d"))
    bench.pod(pod("q", "d"))
    bench.run()
    given = bench.api.get(RESOURCE_CLAIMS, "d")["status"]
    assert conditions(given) == ({} if told == "Prepared" else CONDITIONS)


def tell(bench: Bench, *, state: str = "", reserved: bool = True, reason: str = "") -> None:
    """The claim as kube-scheduler and the node have it, through the mirror."""
    body = bench.api.get(RESOURCE_CLAIMS, "c")
    (result,) = body["status"]["allocation"]["devices"]["results"]
    shown = {key: result[key] for key in ("driver", "pool", "device")}
    shown["conditions"] = [
        {"type": state, "status": "True", "reason": reason or state, "message": "it is broken"}
    ]
    status = {**body["status"], "reservedFor": RESERVED}
    if not reserved:
        del status["reservedFor"]
    if state:
        status["devices"] = [shown]
    bench.cluster.set_claim(TRIM(bench.api.put(RESOURCE_CLAIMS, {**body, "status": status})))
    bench.run()


def waiting() -> Bench:
    """kube-scheduler waits for a slice on node-a, and the pod would fit on node-b.

    It nominates a pod for its node before it waits.
    """
    bench = site("node-a")
    assert conditions(asked(bench, wish())) == CONDITIONS
    bench.cluster.set_node(node("node-b"))
    bench.cluster.set_mignode(mignode("node-b", gpu(0, "node-b")))
    bench.pod({**pod("p", "c"), "status": {"phase": "Pending", "nominatedNodeName": "node-a"}})
    tell(bench)
    return bench


@pytest.mark.parametrize("leader", ["the same", "another"])
def test_what_cannot_be_made_is_placed_elsewhere_once_kube_scheduler_waits_no_more(
    leader: str,
) -> None:
    bench = waiting()
    if leader == "another":
        bench = bench.succeeded_by("node-a", "node-b")
    tell(bench, state=SLICE_NOT_MADE)
    assert bench.node_of("c") == "node-a", "it would be bound there, wherever its claim is"
    bench.run(seconds=times.POD_NOT_BOUND)
    assert bench.node_of("c") == "node-a"
    tell(bench, state=SLICE_NOT_MADE, reserved=False)
    assert bench.node_of("c") == "node-b"
    assert any("it is broken" in message for *_, message in bench.recorder.events)


@pytest.mark.parametrize(("state", "jump"), [("", 0), (SLICE_MADE, 0), ("", 3600), ("", -3600)])
def test_nothing_is_taken_while_kube_scheduler_may_wait_whatever_becomes_of_node_and_clock(
    state: str, jump: float
) -> None:
    bench = waiting()
    bench.ahead = jump
    tell(bench, state=state)
    bench.api.writes.clear()
    bench.run(seconds=2 * times.NOMINATED_STUCK)
    bench.cluster.remove_node("node-a")
    bench.run(seconds=times.NODE_LOST)
    bench.run(seconds=times.POD_NOT_BOUND)
    assert bench.api.writes == []
    bench.run(seconds=times.SCHEDULER_AWAITS)
    bench.run(seconds=times.NODE_LOST)
    tell(bench, reserved=False)
    assert bench.node_of("c") == "node-b"
