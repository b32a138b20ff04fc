"""Plans for Deployments, ReplicaSets, StatefulSets, DaemonSets and Jobs, from what there is. Pure.

One function a kind, in ``RULES``. There are no strategies of rollouts: a Deployment replaces the
pods of an older template at once, other kinds use a changed template for new pods only.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from dra.common.resources import Obj, Resource, at
from dra.kube.timing import rfc3339
from dra.pods.nodefit import find_barrier, read_node
from dra.pods.pods import read_needs

DEPLOYMENTS = Resource("apps", "v1", "deployments", "Deployment", namespaced=True)
REPLICA_SETS = Resource("apps", "v1", "replicasets", "ReplicaSet", namespaced=True)
STATEFUL_SETS = Resource("apps", "v1", "statefulsets", "StatefulSet", namespaced=True)
DAEMON_SETS = Resource("apps", "v1", "daemonsets", "DaemonSet", namespaced=True)
JOBS = Resource("batch", "v1", "jobs", "Job", namespaced=True)

_HASH = "pod-template-hash"
_REVISION = "deployment.kubernetes.io/revision"
_INDEX = "batch.kubernetes.io/job-completion-index"
_BACKOFF_LIMIT = 6
_DAEMON_TOLERATED = (
    *(("not-ready", "NoExecute"), ("unreachable", "NoExecute"), ("disk-pressure", "NoSchedule")),
    *(("memory-pressure", "NoSchedule"), ("pid-pressure", "NoSchedule")),
    ("unschedulable", "NoSchedule"),
)
"""Taints of nodes that kube-controller-manager has the pods of every DaemonSet tolerate."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Surroundings of an object: what it controls, the nodes, and the time."""

    now: datetime
    pods: Sequence[Obj] = ()
    replica_sets: Sequence[Obj] = ()
    nodes: Sequence[Obj] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """Writes that an object calls for, and its new status.

    ``scale``: number of replicas by the name of a ReplicaSet. ``again``: seconds after which to
    look at the object again, whatever changes. ``ends``: the object itself is to be deleted.
    """

    status: Obj
    create: tuple[Obj, ...] = ()
    delete: tuple[Obj, ...] = ()
    scale: tuple[tuple[str, int], ...] = ()
    again: float | None = None
    ends: bool = False


def has_ended(pod: Obj) -> bool:
    """True if a pod runs no more."""
    return at(pod, "status", "phase") in {"Succeeded", "Failed"}


def is_active(pod: Obj) -> bool:
    """True if a pod has not ended and nobody deletes it."""
    return not has_ended(pod) and "deletionTimestamp" not in pod["metadata"]


def is_ready(pod: Obj) -> bool:
    """True if a pod says that it is ready."""
    conditions = at(pod, "status", "conditions")
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def _controlled(owner: Obj, body: Obj) -> Obj:
    """``body`` in the namespace and under the control of ``owner``."""
    metadata = owner["metadata"]
    reference = {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": metadata["name"],
        "uid": metadata["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }
    body["metadata"] |= {"namespace": metadata["namespace"], "ownerReferences": [reference]}
    return body


def _new_pod(owner: Obj, name: str = "", labels: Mapping[str, str] | None = None) -> Obj:
    """A pod of the owner's template; with a generated name unless one is given."""
    template = copy.deepcopy(owner["spec"]["template"])
    given = template.get("metadata") or {}
    own = {"name": name} if name else {"generateName": f"{owner['metadata']['name']}-"}
    metadata = {
        **own,
        "labels": {**(given.get("labels") or {}), **(labels or {})},
        "annotations": dict(given.get("annotations") or {}),
    }
    return _controlled(owner, {"apiVersion": "v1", "kind": "Pod", **template, "metadata": metadata})


def _oldest_first(objects: Iterable[Obj]) -> list[Obj]:
    return sorted(
        objects, key=lambda o: (o["metadata"]["creationTimestamp"], o["metadata"]["name"])
    )


def _status(owner: Obj, **fields: Any) -> Obj:
    return {"observedGeneration": owner["metadata"].get("generation", 0), **fields}


def _conditions(owner: Obj, now: datetime, *wanted: tuple[str, bool, str]) -> list[Obj]:
    """Conditions by type, truth and reason, with the times of those that stay as they were."""
    known = {c["type"]: c for c in at(owner, "status", "conditions")}
    made = []
    for kind, true, reason in wanted:
        status, old = "True" if true else "False", known.get(kind)
        since = old["lastTransitionTime"] if old and old["status"] == status else rfc3339(now)
        made.append({"type": kind, "status": status, "reason": reason, "lastTransitionTime": since})
    return made


# --- Deployments and ReplicaSets ----------------------------------------------------------------


def plan_deployment(owner: Obj, around: Surroundings) -> Plan:
    """One ReplicaSet with all replicas, that of the present template; older ones with none."""
    template, wanted = owner["spec"]["template"], owner["spec"].get("replicas", 1)
    digest = hashlib.sha256(json.dumps(template, sort_keys=True).encode()).hexdigest()[:10]
    name = f"{owner['metadata']['name']}-{digest}"
    sets = {each["metadata"]["name"]: each for each in around.replica_sets}
    scale = [(n, wanted if n == name else 0) for n in sets]
    create = () if name in sets else (_new_set(owner, name, digest, len(sets) + 1),)
    counts = {n: at(s, "status", "readyReplicas", default=0) for n, s in sets.items()}
    there = {n: at(s, "status", "replicas", default=0) for n, s in sets.items()}
    ready = sum(counts.values())
    enough = ready >= wanted
    conditions = _conditions(
        owner,
        around.now,
        ("Available", enough, "MinimumReplicas" + ("Available" if enough else "Unavailable")),
        ("Progressing", True, "NewReplicaSetAvailable" if enough else "ReplicaSetUpdated"),
    )
    status = _status(
        owner,
        replicas=sum(there.values()),
        updatedReplicas=there.get(name, 0),
        readyReplicas=ready,
        availableReplicas=ready,
        unavailableReplicas=max(0, wanted - ready),
        conditions=conditions,
    )
    changed = tuple((n, count) for n, count in scale if sets[n]["spec"].get("replicas") != count)
    return Plan(status, create, scale=changed)


def _new_set(owner: Obj, name: str, digest: str, revision: int) -> Obj:
    template = copy.deepcopy(owner["spec"]["template"])
    labels = {**at(template, "metadata", "labels", default={}), _HASH: digest}
    template["metadata"] = {**template.get("metadata", {}), "labels": labels}
    chosen = owner["spec"]["selector"]
    selector = {**chosen, "matchLabels": {**chosen.get("matchLabels", {}), _HASH: digest}}
    spec = {"replicas": owner["spec"].get("replicas", 1), "selector": selector}
    metadata = {"name": name, "labels": labels, "annotations": {_REVISION: str(revision)}}
    kind = {"apiVersion": "apps/v1", "kind": "ReplicaSet"}
    return _controlled(
        owner, {**kind, "metadata": metadata, "spec": {**spec, "template": template}}
    )


def plan_replica_set(owner: Obj, around: Surroundings) -> Plan:
    """As many pods as wanted; of too many those go that are not ready, then the newest."""
    wanted, active = owner["spec"].get("replicas", 1), [*filter(is_active, around.pods)]
    kept = sorted(_oldest_first(active), key=lambda pod: not is_ready(pod))
    ready = sum(map(is_ready, active))
    status = _status(
        owner,
        replicas=len(active),
        fullyLabeledReplicas=len(active),
        readyReplicas=ready,
        availableReplicas=ready,
    )
    create = tuple(_new_pod(owner) for _ in range(wanted - len(active)))
    return Plan(status, create, delete=tuple(kept[wanted:]))


# --- StatefulSets and DaemonSets ----------------------------------------------------------------


def plan_stateful_set(owner: Obj, around: Surroundings) -> Plan:
    """Pods by ordinal, unless it is ``Parallel`` one after the other: up, and down again."""
    spec, name = owner["spec"], owner["metadata"]["name"]
    first, wanted = at(spec, "ordinals", "start", default=0), spec.get("replicas", 1)
    parallel = spec.get("podManagementPolicy") == "Parallel"
    names = [f"{name}-{number}" for number in range(first, first + wanted)]
    pods = {pod["metadata"]["name"]: pod for pod in around.pods}
    settled = all(is_active(pod) and is_ready(pod) for n, pod in pods.items() if n in names)
    create, delete = list[Obj](), list[Obj]()
    for number, each in enumerate(names, first):
        pod = pods.get(each)
        if pod is None:
            labels = {
                "statefulset.kubernetes.io/pod-name": each,
                "apps.kubernetes.io/pod-index": str(number),
            }
            made = _new_pod(owner, each, labels)
            made["spec"] |= {"hostname": each, "subdomain": spec.get("serviceName", "")}
            create.append(made)
        elif has_ended(pod) and "deletionTimestamp" not in pod["metadata"]:
            delete.append(pod)
        if not parallel and (pod is None or not is_active(pod) or not is_ready(pod)):
            break
    surplus = [p for n, p in pods.items() if n not in names]
    surplus.sort(key=lambda p: int(p["metadata"]["name"].rpartition("-")[2]), reverse=True)
    going = surplus if parallel else surplus[:1] if settled and not create else []
    delete += [pod for pod in going if "deletionTimestamp" not in pod["metadata"]]
    active = [*filter(is_active, around.pods)]
    ready = sum(map(is_ready, active))
    status = _status(
        owner,
        replicas=len(active),
        currentReplicas=len(active),
        updatedReplicas=len(active),
        readyReplicas=ready,
        availableReplicas=ready,
    )
    return Plan(status, tuple(create), tuple(delete))


def plan_daemon_set(owner: Obj, around: Surroundings) -> Plan:
    """A pod for each node that its selector, affinity and tolerations allow."""
    needs = read_needs(_daemon_pod(owner, "")["spec"])
    suited = [
        node["metadata"]["name"]
        for node in around.nodes
        if "deletionTimestamp" not in node["metadata"]
        and find_barrier(needs, read_node(node)) is None
    ]
    there: dict[str, list[Obj]] = {}
    for pod in _oldest_first(around.pods):
        there.setdefault(_node_of(pod), []).append(pod)
    create = tuple(_daemon_pod(owner, node) for node in suited if not there.get(node))
    over = [pod for n, pods in there.items() for pod in (pods[1:] if n in suited else pods)]
    over += [pod for n in suited for pod in there.get(n, ())[:1] if has_ended(pod)]
    delete = tuple(pod for pod in over if "deletionTimestamp" not in pod["metadata"])
    current = [pod for n in suited for pod in there.get(n, ())[:1]]
    ready = sum(map(is_ready, current))
    status = _status(
        owner,
        desiredNumberScheduled=len(suited),
        currentNumberScheduled=len(current),
        updatedNumberScheduled=len(current),
        numberReady=ready,
        numberAvailable=ready,
        numberUnavailable=len(suited) - ready,
        numberMisscheduled=sum(len(pods) for n, pods in there.items() if n not in suited),
    )
    return Plan(status, create, delete)


def _daemon_pod(owner: Obj, node: str) -> Obj:
    """A pod for one node, which kube-scheduler binds; for any without one."""
    pod = _new_pod(owner)
    spec = pod["spec"]
    tolerated = [
        {"key": f"node.kubernetes.io/{key}", "operator": "Exists", "effect": effect}
        for key, effect in _DAEMON_TOLERATED
    ]
    spec["tolerations"] = [*spec.get("tolerations", ()), *tolerated]
    if node:
        field = {"key": "metadata.name", "operator": "In", "values": [node]}
        terms = {"nodeSelectorTerms": [{"matchFields": [field]}]}
        given = spec.get("affinity") or {}
        required = {"requiredDuringSchedulingIgnoredDuringExecution": terms}
        spec["affinity"] = {**given, "nodeAffinity": {**given.get("nodeAffinity", {}), **required}}
    return pod


def _node_of(pod: Obj) -> str:
    affinity = at(pod, "spec", "affinity", "nodeAffinity", default={})
    path = ("requiredDuringSchedulingIgnoredDuringExecution", "nodeSelectorTerms")
    fields = [f for term in at(affinity, *path) for f in at(term, "matchFields")]
    named = next((f["values"][0] for f in fields if f["key"] == "metadata.name"), "")
    return str(pod["spec"].get("nodeName") or named)


# --- Jobs ---------------------------------------------------------------------------------------


def plan_job(owner: Obj, around: Surroundings) -> Plan:
    """As many pods at a time as allowed, until enough have succeeded or too many have failed.

    Pods that have ended are remembered by uid in ``uncountedTerminatedPods``, so that they count
    once they are gone, too. A pod that fails is replaced without a pause.
    """
    spec, before = owner["spec"], at(owner, "status", default={})
    counted = {
        "succeeded": _ended(before, around.pods, "succeeded", "Succeeded"),
        "failed": _ended(before, around.pods, "failed", "Failed"),
    }
    done, failed = len(counted["succeeded"]), len(counted["failed"])
    active = _oldest_first(filter(is_active, around.pods))
    conditions = [c for c in before.get("conditions", ()) if c["type"] in {"Complete", "Failed"}]
    status: Obj = {
        "active": len(active),
        "ready": sum(map(is_ready, active)),
        "succeeded": done,
        "failed": failed,
        "uncountedTerminatedPods": counted,
    }
    if indexes := _indexes(before, around.pods):
        status["completedIndexes"] = ",".join(map(str, sorted(indexes)))
    if spec.get("suspend") and not conditions:
        return Plan(status, delete=tuple(active))
    started = status["startTime"] = before.get("startTime") or rfc3339(around.now)
    left = _seconds_left(started, spec.get("activeDeadlineSeconds"), around.now)
    if not conditions:
        conditions = _verdict(spec, done, failed, active, late=left is not None and left <= 0)
        conditions = [{**c, "lastTransitionTime": rfc3339(around.now)} for c in conditions]
    if conditions:
        return _finished(spec, status | {"conditions": conditions}, active, around.now)
    wanted, completions = spec.get("parallelism", 1), spec.get("completions")
    if completions is not None:
        wanted = min(wanted, completions - done)
    elif done:  # of a queue of work: who finds it empty succeeds, and no more are begun
        wanted = min(wanted, len(active))
    create = _job_pods(owner, active, indexes, wanted)
    return Plan(status, tuple(create), delete=tuple(active[max(0, wanted) :]), again=left)


def _ended(before: Obj, pods: Iterable[Obj], word: str, phase: str) -> list[str]:
    known = at(before, "uncountedTerminatedPods", word)
    ended = (p["metadata"]["uid"] for p in pods if at(p, "status", "phase") == phase)
    return [*dict.fromkeys([*known, *ended])]


def _verdict(spec: Obj, done: int, failed: int, active: Sequence[Obj], *, late: bool) -> list[Obj]:
    """The condition with which a Job ends now; none if it goes on."""
    completions = spec.get("completions")
    if done >= completions if completions is not None else done > 0 and not active:
        return [{"type": "Complete", "status": "True", "reason": "CompletionsReached"}]
    if failed > spec.get("backoffLimit", _BACKOFF_LIMIT):
        return [{"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded"}]
    return [{"type": "Failed", "status": "True", "reason": "DeadlineExceeded"}] if late else []


def _finished(spec: Obj, status: Obj, active: Sequence[Obj], now: datetime) -> Plan:
    """The plan of a Job that is over: what has ended stays, the Job itself for its time to live."""
    verdict, ended = status["conditions"][0], dict[str, Any](active=0, ready=0)
    since = verdict["lastTransitionTime"]
    if verdict["type"] == "Complete":
        ended["completionTime"] = since
    left = _seconds_left(since, spec.get("ttlSecondsAfterFinished"), now)
    ends = left is not None and left <= 0
    return Plan(status | ended, delete=tuple(active), again=left, ends=ends)


def _seconds_left(since: str, seconds: int | None, now: datetime) -> float | None:
    if seconds is None:
        return None
    return (datetime.fromisoformat(since) + timedelta(seconds=seconds) - now).total_seconds()


def _index_of(pod: Obj) -> int | None:
    found = at(pod, "metadata", "annotations", _INDEX, default=None)
    return None if found is None else int(found)


def _indexes(before: Obj, pods: Iterable[Obj]) -> set[int]:
    """Indexes of which a pod has succeeded; empty of a Job that is not ``Indexed``."""
    known = {int(word) for word in (before.get("completedIndexes") or "").split(",") if word}
    ended = (_index_of(pod) for pod in pods if at(pod, "status", "phase") == "Succeeded")
    return known | {index for index in ended if index is not None}


def _job_pods(owner: Obj, active: Sequence[Obj], done: set[int], wanted: int) -> list[Obj]:
    name, uid = owner["metadata"]["name"], owner["metadata"]["uid"]
    labels = {
        f"{prefix}{key}": text
        for prefix in ("", "batch.kubernetes.io/")
        for key, text in (("job-name", name), ("controller-uid", uid))
    }
    made = [_new_pod(owner, labels=labels) for _ in range(wanted - len(active))]
    if owner["spec"].get("completionMode") != "Indexed":
        return made
    taken = done | {index for pod in active if (index := _index_of(pod)) is not None}
    free = [i for i in range(owner["spec"].get("completions") or 0) if i not in taken]
    for pod, index in zip(made, free, strict=False):
        pod["metadata"]["generateName"] = f"{name}-{index}-"
        pod["metadata"]["labels"][_INDEX] = pod["metadata"]["annotations"][_INDEX] = str(index)
        pod["spec"]["hostname"] = f"{name}-{index}"
        for container in pod["spec"].get("containers", ()):
            variable = {"name": "JOB_COMPLETION_INDEX", "value": str(index)}
            container["env"] = [*container.get("env", ()), variable]
    return made[: len(free)]


RULES: dict[Resource, Callable[[Obj, Surroundings], Plan]] = {
    DEPLOYMENTS: plan_deployment,
    REPLICA_SETS: plan_replica_set,
    STATEFUL_SETS: plan_stateful_set,
    DAEMON_SETS: plan_daemon_set,
    JOBS: plan_job,
}
