"""The pods that Deployments, StatefulSets, DaemonSets and Jobs call for."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from dra.common.resources import PODS, Obj
from dra.kube.client import KubeApi
from dra.kube.timing import rfc3339
from sim.workloads.controller import WorkloadController
from sim.workloads.plans import (
    DEPLOYMENTS,
    JOBS,
    REPLICA_SETS,
    Surroundings,
    plan_daemon_set,
    plan_deployment,
    plan_job,
    plan_replica_set,
    plan_stateful_set,
)
from tests.controller.helpers.objects import node
from tests.helpers.waiting import wait_for
from tests.sim.standins import wipe

NOW = datetime(2026, 1, 2, tzinfo=UTC)
_LABELS = {"app": "a"}


def owner(kind: str, *, status: Obj | None = None, **spec: Any) -> Obj:
    group = "batch/v1" if kind == "Job" else "apps/v1"
    template = {"metadata": {"labels": _LABELS}, "spec": {"containers": [{"name": "main"}]}}
    selector = {} if kind == "Job" else {"selector": {"matchLabels": _LABELS}}
    return {
        "apiVersion": group,
        "kind": kind,
        "metadata": {"name": "a", "namespace": "default", "uid": "o", "generation": 3},
        "spec": {"template": template, **selector, **spec},
        "status": status or {},
    }


def there(name: str, state: str = "ready", **more: Any) -> Obj:
    """A pod: ``ready``, ``pending``, ``Succeeded``, ``Failed``, or ``going`` (being deleted)."""
    metadata: Obj = {"name": name, "uid": f"u-{name}", "creationTimestamp": f"t-{name}", **more}
    status: Obj = {"phase": "Pending"}
    if state in {"Succeeded", "Failed"}:
        status = {"phase": state}
    elif state != "pending":
        status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    if state == "going":
        metadata["deletionTimestamp"] = "t"
    return {"metadata": metadata, "spec": {}, "status": status}


def around(*pods: Obj, **more: Any) -> Surroundings:
    return Surroundings(now=NOW, pods=pods, **more)


def names(objects: tuple[Obj, ...]) -> list[str]:
    return [o["metadata"]["name"] for o in objects]


@pytest.mark.parametrize(
    ("wanted", "pods", "made", "ended"),
    [
        (3, (), 3, []),
        (2, (there("x"),), 1, []),
        (2, (there("x"), there("y", "Failed"), there("z", "going")), 1, []),
        (1, (there("x"), there("y", "pending"), there("z")), 0, ["z", "y"]),
        (0, (there("x"), there("z", "going")), 0, ["x"]),
    ],
)
def test_a_replica_set_keeps_its_number_of_pods(
    wanted: int, pods: tuple[Obj, ...], made: int, ended: list[str]
) -> None:
    plan = plan_replica_set(owner("ReplicaSet", replicas=wanted), around(*pods))
    assert (len(plan.create), names(plan.delete)) == (made, ended)
    assert plan.status["observedGeneration"] == 3
    for pod in plan.create:
        (reference,) = pod["metadata"]["ownerReferences"]
        assert (reference["uid"], reference["controller"]) == ("o", True)
        assert pod["metadata"]["labels"] == _LABELS
        assert pod["metadata"]["generateName"] == "a-"


def test_a_deployment_moves_all_its_replicas_to_the_set_of_its_present_template() -> None:
    first = plan_deployment(owner("Deployment", replicas=2), around())
    (made,) = first.create
    made["status"] = {"replicas": 2, "readyReplicas": 2}
    assert made["spec"]["replicas"] == 2
    assert made["spec"]["selector"]["matchLabels"].items() >= _LABELS.items()
    assert made["spec"]["template"]["metadata"]["labels"] == made["metadata"]["labels"]
    settled = plan_deployment(owner("Deployment", replicas=2), around(replica_sets=[made]))
    assert not settled.create
    assert not settled.scale
    assert settled.status["readyReplicas"] == settled.status["updatedReplicas"] == 2
    assert [c["status"] for c in settled.status["conditions"]] == ["True", "True"]
    fewer = plan_deployment(owner("Deployment", replicas=1), around(replica_sets=[made]))
    assert fewer.scale == ((made["metadata"]["name"], 1),)
    changed = owner("Deployment", replicas=2)
    changed["spec"]["template"]["spec"]["containers"][0]["image"] = "new"
    plan = plan_deployment(changed, around(replica_sets=[made]))
    assert plan.scale == ((made["metadata"]["name"], 0),)
    assert names(plan.create) != names(first.create)
    assert plan.status["updatedReplicas"] == 0


_ORDERED: Obj = {}
_PARALLEL: Obj = {"podManagementPolicy": "Parallel"}


@pytest.mark.parametrize(
    ("spec", "pods", "made", "ended"),
    [
        (_ORDERED, (), ["a-0"], []),
        (_ORDERED, (there("a-0", "pending"),), [], []),
        (_ORDERED, (there("a-0"),), ["a-1"], []),
        (_ORDERED, (there("a-1"), there("a-2")), ["a-0"], []),
        (_ORDERED, (there("a-0", "Failed"), there("a-1")), [], ["a-0"]),
        (_ORDERED, (there("a-0", "going"), there("a-1")), [], []),
        (_ORDERED, tuple(there(f"a-{i}") for i in range(12)), [], ["a-11"]),
        (_ORDERED, (there("a-0", "pending"), there("a-1"), there("a-3")), [], []),
        (_PARALLEL, (), ["a-0", "a-1", "a-2"], []),
        (_PARALLEL, tuple(there(f"a-{i}") for i in range(5)), [], ["a-4", "a-3"]),
        ({"ordinals": {"start": 5}}, (there("a-5"),), ["a-6"], []),
    ],
)
def test_pods_of_a_stateful_set_come_and_go_by_ordinal(
    spec: Obj, pods: tuple[Obj, ...], made: list[str], ended: list[str]
) -> None:
    plan = plan_stateful_set(owner("StatefulSet", replicas=3, **spec), around(*pods))
    assert (names(plan.create), names(plan.delete)) == (made, ended)
    assert all(pod["spec"]["hostname"] == pod["metadata"]["name"] for pod in plan.create)


def test_a_daemon_set_has_a_pod_on_each_node_that_suits_it() -> None:
    taint = {"key": "x", "effect": "NoSchedule"}
    nodes = [
        node("n-1", labels={"gpu": "yes"}),
        node("n-2", labels={"gpu": "yes"}, unschedulable=True),
        node("n-3", labels={"gpu": "yes"}, taints=[taint]),
        node("n-4"),
    ]
    body = owner("DaemonSet")
    body["spec"]["template"]["spec"]["nodeSelector"] = {"gpu": "yes"}
    first = plan_daemon_set(body, around(nodes=nodes))
    affinities = [pod["spec"]["affinity"]["nodeAffinity"] for pod in first.create]
    assert [str(each).count("'n-1'") for each in affinities] == [1, 0]
    assert first.status["desiredNumberScheduled"] == 2
    pods = [there("x"), there("y"), there("z", "Failed")]
    for pod, name in zip(pods, ("n-1", "n-4", "n-2"), strict=True):
        pod["spec"]["nodeName"] = name
    plan = plan_daemon_set(body, around(*pods, nodes=nodes))
    assert (plan.create, sorted(names(plan.delete))) == ((), ["y", "z"])
    assert plan.status["numberReady"] == plan.status["numberMisscheduled"] == 1


def ended(*uids: str, failed: tuple[str, ...] = ()) -> Obj:
    known = {"succeeded": [f"u-{u}" for u in uids], "failed": [f"u-{u}" for u in failed]}
    return {"uncountedTerminatedPods": known, "startTime": rfc3339(NOW)}


_ONE: Obj = {"completions": 1, "parallelism": 1}
_FOUR = {"completions": 4, "parallelism": 3}
_QUEUE = {"parallelism": 2}
_OLD = {"startTime": rfc3339(NOW - timedelta(seconds=60))}


@pytest.mark.parametrize(
    ("spec", "status", "pods", "calls"),
    [
        (_ONE, {}, (), (1, [], "")),
        (_ONE, {}, (there("x"),), (0, [], "")),
        (_ONE, {}, (there("x", "Succeeded"),), (0, [], "CompletionsReached")),
        (_ONE, {}, (there("x", "Failed"),), (1, [], "")),
        (_ONE | {"backoffLimit": 0}, {}, (there("x", "Failed"),), (0, [], "BackoffLimitExceeded")),
        (_ONE, ended("gone"), (), (0, [], "CompletionsReached")),
        (_ONE, ended(failed=tuple("abcdef")), (), (1, [], "")),
        (_ONE, ended(failed=tuple("abcdefg")), (), (0, [], "BackoffLimitExceeded")),
        (_ONE | {"activeDeadlineSeconds": 30}, _OLD, (there("x"),), (0, ["x"], "DeadlineExceeded")),
        (_FOUR, {}, (), (3, [], "")),
        (_FOUR, ended("v"), (there("v", "Succeeded"), there("w"), there("x")), (1, [], "")),
        (_FOUR, ended("u", "v"), (there("w"), there("x")), (0, [], "")),
        (_FOUR, ended("a", "b", "c", "d"), (there("x"),), (0, ["x"], "CompletionsReached")),
        (_FOUR | {"suspend": True}, {}, (there("x"),), (0, ["x"], "")),
        (_QUEUE, {}, (), (2, [], "")),
        (_QUEUE, ended("u"), (there("x"),), (0, [], "")),
        (_QUEUE, ended("u"), (), (0, [], "CompletionsReached")),
    ],
)
def test_a_job_runs_until_enough_have_succeeded(
    spec: Obj, status: Obj, pods: tuple[Obj, ...], calls: tuple[int, list[str], str]
) -> None:
    made, gone, verdict = calls
    plan = plan_job(owner("Job", status=status, **spec), around(*pods))
    assert (len(plan.create), names(plan.delete)) == (made, gone)
    assert [c["reason"] for c in plan.status.get("conditions", ())] == [verdict][: bool(verdict)]
    assert ("completionTime" in plan.status) == (verdict == "CompletionsReached")
    if verdict:
        again = plan_job(owner("Job", status=plan.status, **spec), around())
        assert again.status == plan.status, "it stays as it ended once its pods are gone"


def test_an_indexed_job_begins_those_that_have_not_succeeded() -> None:
    index = "batch.kubernetes.io/job-completion-index"
    runs = there("x", annotations={index: "1"})
    done = there("y", "Succeeded", annotations={index: "3"})
    body = owner("Job", completions=4, parallelism=4, completionMode="Indexed")
    plan = plan_job(body, around(runs, done))
    assert plan.status["completedIndexes"] == "3"
    assert [pod["metadata"]["annotations"][index] for pod in plan.create] == ["0", "2"]
    assert plan.create[1]["spec"]["hostname"] == "a-2"


def test_a_job_that_is_over_goes_after_its_time_to_live() -> None:
    body = owner("Job", ttlSecondsAfterFinished=10, **_ONE)
    body["status"] = plan_job(body, around(there("x", "Succeeded"))).status
    for seconds, left in ((4, 6.0), (11, -1.0)):
        plan = plan_job(body, Surroundings(NOW + timedelta(seconds=seconds)))
        assert (plan.again, plan.ends) == (left, left < 0)


@pytest.fixture
def controller(api: KubeApi) -> Iterator[None]:
    running = WorkloadController(api)
    running.start()
    yield
    wipe(api, (DEPLOYMENTS, JOBS, REPLICA_SETS))
    running.stop()


@pytest.mark.usefixtures("controller")
def test_what_is_planned_is_done_and_goes_with_its_owner(api: KubeApi) -> None:
    body = owner("Deployment", replicas=2)
    body["metadata"] = {"name": "a", "namespace": "default"}
    api.create(DEPLOYMENTS, body)

    def pods() -> set[str]:
        return {pod["metadata"]["name"] for pod in api.list(PODS).items}

    def status() -> Obj:
        found: Obj = api.get(DEPLOYMENTS, "a", namespace="default")["status"]
        return found

    wait_for("two pods", lambda: len(pods()) == 2)
    (gone, kept) = pods()
    for name in (gone, kept):
        ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
        api.patch(PODS, name, {"status": ready}, namespace="default", subresource="status")
    wait_for("its count", lambda: status().get("readyReplicas") == 2)
    api.delete(PODS, gone, namespace="default", grace_seconds=0)
    wait_for("another pod", lambda: len(pods()) == 2 and gone not in pods())
    api.patch(DEPLOYMENTS, "a", {"spec": {"replicas": 1}}, namespace="default")
    wait_for("one pod, which is ready", lambda: pods() == {kept})
    api.delete(DEPLOYMENTS, "a", namespace="default")
    wait_for("nothing left", lambda: not pods() and not api.list(REPLICA_SETS).items)
