"""Membership in gangs, in the words of each system."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dra.common.resources import Obj
from dra.gangs.membership import (
    COSCHEDULING,
    KOORDINATOR,
    KUBERNETES,
    VOLCANO,
    WORKLOADS,
    GroupRef,
    keep_pod_group,
    read_membership,
)

OWN, COUNT = "mig.dra.dev/pod-group", "mig.dra.dev/pod-group-min-count"
KUEUE, TOTAL = "kueue.x-k8s.io/pod-group-name", "kueue.x-k8s.io/pod-group-total-count"
FAST = "kueue.x-k8s.io/pod-group-fast-admission"
LIGHT = "pod-group.scheduling.sigs.k8s.io"


def pod(
    labels: dict[str, str] | None = None, annotations: dict[str, str] | None = None, **spec: Any
) -> Obj:
    metadata = {"namespace": "team", "name": "p", "labels": labels, "annotations": annotations}
    return {"metadata": metadata, "spec": spec}


@pytest.mark.parametrize(
    ("obj", "words", "stated"),
    [
        (pod({OWN: "g", COUNT: "4"}), "pod group team/g", "4"),
        (pod({OWN: "g"}), "pod group team/g", None),
        (pod({COUNT: "4", "jobset.sigs.k8s.io/jobset-name": "train"}), "JobSet team/train", "4"),
        (
            pod({COUNT: "2", "leaderworkerset.sigs.k8s.io/group-key": "a1"}),
            "group of a LeaderWorkerSet team/a1",
            "2",
        ),
        (pod({COUNT: "2", "batch.kubernetes.io/job-name": "j"}), "Job team/j", "2"),
        (pod({KUEUE: "k"}, {TOTAL: "3"}), "Kueue pod group team/k", "3"),
        (pod({KUEUE: "k"}), "Kueue pod group team/k", None),
        (pod({f"{LIGHT}/name": "n", f"{LIGHT}/min-available": "2"}), "pod group team/n", "2"),
        (pod({OWN: "g", COUNT: "4", KUEUE: "k"}, {TOTAL: "3"}), "pod group team/g", "4"),
    ],
)
def test_pods_that_say_themselves_how_many(obj: Obj, words: str, stated: str | None) -> None:
    found = read_membership(obj)
    assert found is not None
    assert (str(found.gang), found.stated, found.group) == (words, stated, None)
    assert found.field


@pytest.mark.parametrize(
    ("obj", "group"),
    [
        (pod(schedulingGroup={"podGroupName": "g"}), GroupRef(KUBERNETES, "team", "g")),
        (
            pod(workloadRef={"name": "w", "podGroup": "workers", "podGroupReplicaKey": "1"}),
            GroupRef(WORKLOADS, "team", "w", "workers"),
        ),
        (pod(None, {"scheduling.k8s.io/group-name": "v"}), GroupRef(VOLCANO, "team", "v")),
        (pod(None, {"scheduling.volcano.sh/group-name": "v"}), GroupRef(VOLCANO, "team", "v")),
        (pod({"scheduling.x-k8s.io/pod-group": "c"}), GroupRef(COSCHEDULING, "team", "c")),
        (pod({LIGHT: "c"}), GroupRef(KOORDINATOR, "team", "c")),
        (
            pod({OWN: "g", COUNT: "4"}, schedulingGroup={"podGroupName": "g"}),
            GroupRef(KUBERNETES, "team", "g"),
        ),
    ],
)
def test_pods_of_which_an_object_says_how_many(obj: Obj, group: GroupRef) -> None:
    found = read_membership(obj)
    assert found is not None
    assert found.group == group
    assert found.gang.namespace == "team"


@pytest.mark.parametrize(
    "obj",
    [
        pod(),
        pod({"app": "x"}, {"note": "y"}),
        pod({"jobset.sigs.k8s.io/jobset-name": "train"}),
        pod({"batch.kubernetes.io/job-name": "j"}),
        pod({KUEUE: "k"}, {TOTAL: "3", FAST: "true"}),
        pod(schedulingGroup={}),
        pod(schedulingGroup=None, workloadRef=None),
        {"metadata": {"namespace": "team", "name": "p"}},
    ],
)
def test_pods_that_are_served_by_themselves(obj: Obj) -> None:
    assert read_membership(obj) is None


@pytest.mark.parametrize(
    ("spec", "is_kept"),
    [
        ({"podGroups": [{"name": "x" * 63}] * 8, "minMember": 3}, True),
        ({"podGroups": [{"name": f"g{n}"} for n in range(20_000)]}, False),
        ({"minMember": {"a": "x" * 100_000}}, False),
    ],
    ids=["the most of Kubernetes", "many groups", "no number"],
)
def test_of_a_group_no_more_is_kept_than_kubernetes_lets_it_have(
    spec: Obj, *, is_kept: bool
) -> None:
    metadata = {"namespace": "a", "name": "b", "uid": "c", "resourceVersion": "1"}
    raw = msgspec.Raw(msgspec.json.encode({"metadata": metadata, "spec": spec}))
    assert keep_pod_group(raw) == {"metadata": metadata} | ({"spec": spec} if is_kept else {})
