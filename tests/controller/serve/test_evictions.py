"""Pods that are bound where their slice cannot be made, evicted where that is wished."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from controller import times
from dra.claims.conditions import PREPARE_FAILED, PREPARE_FAILING
from dra.common.resources import PODS, RESOURCE_CLAIMS, Obj
from dra.gpu.inventory import FailedClaim
from dra.gpu.mignode import to_mignode
from dra.kube.errors import ForbiddenError, UnavailableError
from tests.controller.helpers.bench import Bench
from tests.controller.helpers.objects import (
    DRIVER,
    allocated,
    claim,
    gpu,
    instance,
    inventory,
    pod,
    versioned,
)
from tests.controller.helpers.stored import Stored

DEVICE = "gpu-0-mig-1g5gb-19-0"
TIME = "2026-01-01T00:10:00.000001Z"
WHY = "nvmlDeviceCreateGpuInstance: UNKNOWN (999)"
OWNER = {"kind": "ReplicaSet", "name": "r", "uid": "r", "controller": True}


def config(on_failure: str, source: str = "FromClass", driver: str = DRIVER) -> Obj:
    parameters = {
        "apiVersion": "mig.dra.dev/v1alpha1",
        "kind": "MigDeviceConfig",
        "preparation": {"onFailure": on_failure},
    }
    return {"source": source, "opaque": {"driver": driver, "parameters": parameters}}


def stuck(
    *configs: Obj,
    reason: str = PREPARE_FAILING,
    label: str = "",
    owner: Obj | None = OWNER,
    evict_failed: bool = True,
    phase: str = "Pending",
    ran: Obj | None = None,
    refusal: dict[str, Any] | None = None,
    ahead: float = 0.0,
    **spec: Any,
) -> Bench:
    """A pod whose node says of its claim what ``reason`` says, or, in its MigNode, ``refusal``.

    ``ran``: the state of its init container. ``ahead``: seconds by which our clock is fast.
    """
    bench = Bench("node-a", evict_failed=evict_failed)
    bench.ahead = ahead
    if refusal is not None:
        tells(bench, **refusal)
    body = allocated(claim("c"), "node-a", DEVICE)
    condition = {"type": "Ready", "status": "False", "reason": reason, "message": WHY}
    shown = {"driver": DRIVER, "pool": "node-a-pool", "device": DEVICE, "conditions": [condition]}
    body["status"]["devices"] = [shown] if refusal is None else []
    body["status"]["reservedFor"] = [{"resource": "pods", "name": "p", "uid": "uid-p"}]
    body["status"]["allocation"]["devices"]["config"] = [*configs]
    bench.claim(body)
    waiting = {**pod("p", "c", **{"nodeName": "node-a", **spec}), "status": {"phase": phase}}
    waiting["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z"
    if ran is not None:
        waiting["status"]["initContainerStatuses"] = [{"name": "init", "state": ran}]
    if label:
        waiting["metadata"]["labels"] = {f"{DRIVER}/on-failure": label}
    if owner:
        waiting["metadata"]["ownerReferences"] = [owner]
    bench.pod(Stored(PODS)(versioned(waiting)))
    bench.run()
    return bench


def tells(
    bench: Bench, *, passing: bool = False, names_gpu: bool = True, blocked: bool = False
) -> None:
    """The node lists the claim as failed."""
    holder = (instance("2g.10gb", 0, uid="other"),) if blocked else ()
    seen = inventory("node-a", gpu(instances=holder))
    (uuid,) = (each.uuid for each in seen.gpus)
    failed = FailedClaim("default", "c", "uid-c", TIME, passing, uuid if names_gpu else "")
    bench.cluster.set_mignode(versioned(to_mignode(replace(seen, failed_claims=(failed,)))))
    bench.run()


def evicted(bench: Bench) -> list[str]:
    return [body["metadata"]["name"] for body in bench.api.evicted]


@pytest.mark.parametrize("reason", [PREPARE_FAILING, PREPARE_FAILED])
@pytest.mark.parametrize("wish", [{"label": "evict"}, {"configs": [config("evict")]}])
def test_a_pod_that_asks_for_it_is_evicted_and_told_why(reason: str, wish: dict[str, Any]) -> None:
    bench = stuck(*wish.get("configs", ()), reason=reason, label=wish.get("label", ""))
    (body,) = bench.api.evicted
    assert (body["kind"], body["apiVersion"]) == ("Eviction", "policy/v1")
    assert body["deleteOptions"] == {"preconditions": {"uid": "uid-p"}}
    told = [m for kind, _, r, m in bench.recorder.events if (kind, r) == ("Pod", "PodEvicted")]
    (message,) = told
    assert WHY in message


@pytest.mark.parametrize(
    ("configs", "label", "owner"),
    [
        ([config("wait")], "", OWNER),
        ([], "", None),
        ([config("evict")], "", None),
        ([config("evict")], "", {**OWNER, "controller": False}),
        ([config("evict")], "wait", OWNER),
        ([config("evict"), config("wait", "FromClaim")], "", OWNER),
    ],
    ids=["class", "bare", "bare, asked", "no controller", "label above", "claim above"],
)
def test_nobody_else_is(configs: list[Obj], label: str, owner: Obj | None) -> None:
    assert evicted(stuck(*configs, label=label, owner=owner)) == []


def test_a_bare_pod_is_by_its_own_label_only() -> None:
    assert evicted(stuck(label="evict", owner=None)) == ["p"]


@pytest.mark.parametrize(
    ("refusal", "names"),
    [
        ({}, ["p"]),
        ({"passing": True}, []),
        ({"names_gpu": False}, []),
        ({"blocked": True}, []),
    ],
    ids=["NVML", "passes", "no GPU's", "in the way"],
)
def test_a_slice_that_nvml_refuses_is_reason_enough(
    refusal: dict[str, Any], names: list[str]
) -> None:
    assert evicted(stuck(refusal=refusal)) == names


def test_a_bare_pod_is_told_what_nvml_refused() -> None:
    bench = stuck(refusal={}, owner=None)
    told = [m for kind, *_, m in bench.recorder.events if kind == "Pod"]
    assert any("NVML refused" in m and "delete the pod and create it again" in m for m in told)


@pytest.mark.parametrize("ran", [{"running": {}}, {"terminated": {"exitCode": 0}}])
def test_a_pod_of_which_something_has_run_stays(ran: Obj) -> None:
    assert evicted(stuck(ran=ran)) == []
    assert evicted(stuck(ran={"waiting": {"reason": "PodInitializing"}})) == ["p"]
    assert evicted(stuck(ran=ran, label="evict")) == ["p"]


@pytest.mark.parametrize("ahead", [0, 3600])
def test_what_is_made_anew_and_fails_again_is_evicted_after_a_pause_that_grows(ahead: int) -> None:
    bench, passed = stuck(ahead=ahead), 0.0
    known = bench.api.get(PODS, "p")
    pause = times.EVICTION_AGAIN[0]
    for number in range(3):
        name, stamp = f"p{number}", f"2026-01-01T00:0{number}:59Z"
        claimed = bench.api.get(RESOURCE_CLAIMS, "c")
        claimed["status"]["reservedFor"] = [{"resource": "pods", "name": name, "uid": name}]
        bench.claim(claimed)
        metadata = {**known["metadata"], "name": name, "uid": name, "creationTimestamp": stamp}
        bench.remove_pod(evicted(bench)[-1])
        bench.pod({**known, "metadata": metadata})
        bench.run(seconds=pause - passed - 0.1)
        assert len(evicted(bench)) == number + 1
        bench.run(seconds=0.2)
        assert len(evicted(bench)) == number + 2
        passed, pause = 0.1, 2 * pause


@pytest.mark.parametrize(
    "configs",
    [
        [config("wait"), config("evict", "FromClaim")],
        [config("wait", driver="nic.example")],
        [config("evict"), config("never", "FromClaim")],
        [config("evict"), config("wait", driver="nic.example")],
        [config("evict"), {"opaque": {"driver": DRIVER}}],
        [config("evict"), {"opaque": None}],
    ],
    ids=["claim above class", "nobody", "no such wish", "another's", "no parameters", "nothing"],
)
def test_the_last_wish_that_can_be_read_counts(configs: list[Obj]) -> None:
    assert evicted(stuck(*configs)) == ["p"]


@pytest.mark.parametrize(
    "spec",
    [{"phase": "Running"}, {"nodeName": ""}, {"nodeName": "node-b"}, {"reason": "Prepared"}],
    ids=str,
)
def test_a_pod_that_runs_or_may_still_run_is_not(spec: dict[str, Any]) -> None:
    assert evicted(stuck(label="evict", **spec)) == []


def test_without_leave_of_the_administrator_it_is_told_so_once() -> None:
    bench = stuck(label="evict", evict_failed=False)
    bench.run(seconds=200)
    assert evicted(bench) == []
    (message,) = [m for *_, reason, m in bench.recorder.events if reason == "PodNotEvicted"]
    assert "--evict-failed" in message


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (UnavailableError("the budget forbids it", status=429), "the budget forbids it"),
        (ForbiddenError("no", status=403), "create on pods/eviction"),
    ],
)
def test_what_is_refused_is_tried_again_after_growing_pauses(error: Any, said: str) -> None:
    refusals: list[str] = []

    def refuse(what: str) -> Any:
        refusals.append(what)
        return error if what == "pods/eviction" else None

    bench = stuck(label="wait")
    assert evicted(bench) == []
    bench.api.refuse = refuse
    known = bench.api.get(PODS, "p")
    labels = {f"{DRIVER}/on-failure": "evict"}
    bench.pod({**known, "metadata": {**known["metadata"], "labels": labels}})
    bench.run()
    assert refusals.count("pods/eviction") == 1
    assert any(said in message for *_, message in bench.recorder.events)
    bench.run(seconds=times.EVICTION_AGAIN[0] - 0.1)
    assert refusals.count("pods/eviction") == 1
    bench.run(seconds=0.1)
    assert refusals.count("pods/eviction") == 2
    bench.run(seconds=times.EVICTION_AGAIN[0])
    assert refusals.count("pods/eviction") == 2
    bench.api.refuse = lambda _: None
    bench.run(seconds=times.EVICTION_AGAIN[0])
    assert evicted(bench) == ["p"]
