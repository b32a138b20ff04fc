"""Pods as they are stored: the part that is read of their JSON, and bounds on it.

Whole pods would take megabytes each, and gigabytes together.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Any, TypedDict

import msgspec

from api.decoding import decodable
from dra.claims.conditions import SENT
from dra.common.cache import decoded_weight
from dra.common.parts import (
    ABSENT,
    Owner,
    Part,
    controllers,
    cut,
    decode,
    decoded,
    present,
    text_of,
)
from dra.common.quantity import parse_quantity
from dra.common.resources import Obj, at
from dra.pods.pods import CPU, DEFAULT_SCHEDULER, UNREAD, effective_request

POD_BYTES = 192 * 2**10
"""Most memory for the kept part of one pod, roughly."""

MOST_TERMS = 200
"""Most terms, their parts and tolerations: JSON objects to compare with nodes and pods."""

MOST_RESOURCES = 64
"""Most different resources that a pod asks for."""

MOST_CLAIMS = 128
"""Most claims of a pod."""

MOST_VOLUMES = 64
"""Most volumes of a pod that have PersistentVolumeClaims."""

MOST_PORTS = 128
"""Most host ports of a pod."""

_KEPT_CLAIMS = 64
"""Claims and gates that are kept of a pod that is not read."""

_FEW_CLAIMS = 4
"""The same where the large pods of a namespace are too many."""

_LABELS_BYTES = 16 * 2**10
_USUAL_BYTES = 2**10
"""Text of a pod that is not looked at further."""


class _Metadata(Part):
    name: str
    namespace: str
    uid: str
    labels: msgspec.Raw = ABSENT
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    owner_references: list[Owner] | None = None
    annotations: dict[str, str] | None = None


class _Port(Part):
    host_port: int | None = None
    host_ip: str | None = msgspec.field(name="hostIP", default=None)
    protocol: str | None = None


class _Asked(Part):
    """Requests of a container or pod; other fields are as they are."""

    requests: dict[str, Any] | None = None


class _Container(Part):
    name: str = ""
    resources: msgspec.Raw = ABSENT
    restart_policy: str | None = None
    ports: list[_Port] | None = None


class _Source(Part):
    claim_name: str = ""


class _Volume(Part):
    name: str = ""
    persistent_volume_claim: _Source | None = None
    ephemeral: msgspec.Raw = ABSENT


class _Entry(Part):
    name: str = ""
    resource_claim_name: str | None = None
    resource_claim_template_name: str | None = None


class _Gate(Part):
    name: str = ""


class _Required(Part):
    required: msgspec.Raw = msgspec.field(
        name="requiredDuringSchedulingIgnoredDuringExecution", default=ABSENT
    )


@decodable
class _Shunning(Part):
    pod_anti_affinity: _Required | None = None


class _Spec(Part):
    node_name: str | None = None
    priority: int | None = None
    preemption_policy: str | None = None
    scheduler_name: str | None = None
    host_users: bool | None = None
    containers: list[_Container] | None = None
    init_containers: list[_Container] | None = None
    volumes: list[_Volume] | None = None
    resource_claims: list[_Entry] | None = None
    scheduling_gates: list[_Gate] | None = None
    overhead: msgspec.Raw = ABSENT
    resources: msgspec.Raw = ABSENT
    affinity: msgspec.Raw = ABSENT
    node_selector: msgspec.Raw = ABSENT
    tolerations: msgspec.Raw = ABSENT
    topology_spread_constraints: msgspec.Raw = ABSENT
    scheduling_group: msgspec.Raw = ABSENT
    workload_ref: msgspec.Raw = ABSENT


class _MadeClaim(Part):
    name: str = ""
    resource_claim_name: str | None = None


class _Condition(Part):
    type: str = ""
    status: str = ""
    reason: str | None = None
    message: str | None = None
    last_transition_time: str | None = None


class _State(Part):
    running: msgspec.Raw = ABSENT
    terminated: msgspec.Raw = ABSENT


class _ContainerStatus(Part):
    name: str = ""
    state: _State | None = None
    restart_count: int = 0
    resources: _Asked | None = None
    allocated_resources: dict[str, Any] | None = None


class _Status(Part):
    phase: str | None = None
    container_statuses: list[_ContainerStatus] | None = None
    init_container_statuses: list[_ContainerStatus] | None = None
    resources: _Asked | None = None
    allocated_resources: dict[str, Any] | None = None
    nominated_node_name: str | None = None
    resource_claim_statuses: list[_MadeClaim] | None = None
    conditions: list[_Condition] | None = None
    start_time: str | None = None


@decodable
class _Pod(Part):
    metadata: _Metadata
    spec: _Spec | None = None
    status: _Status | None = None


def keep_pod(raw: msgspec.Raw, annotations: Collection[str]) -> Obj:
    """The part of a pod that is read, with those of ``annotations`` that it has.

    Labels, references to owners and the larger parts of the spec are text. Without the
    resourceVersion, so that a change of other fields does not count. Of a pod that is too large
    less is left, and ``UNREAD`` in its spec says why.
    """
    pod = msgspec.json.decode(raw, type=_Pod)
    spec, status = pod.spec or _Spec(), pod.status or _Status()
    _count_resizes(spec, status)
    kept = {
        "metadata": _metadata(pod.metadata, annotations),
        "spec": _own(spec) if spec.resource_claims else _others(spec),
        "status": _status(status),
    }
    why = _excess(kept, spec)
    return _stub(kept, spec, why) if why else kept


def _count_resizes(spec: _Spec, status: _Status) -> None:
    """Have ``spec`` request what kube-scheduler counts for a pod that is or was to be resized.

    While kubelet tells what a container has, that is the largest of what is asked for, allocated
    and actual; of what is asked for nothing where kubelet calls it infeasible (PodRequests of
    k8s.io/component-helpers/resource/helpers.go, 1.36). Of init containers only those that restart
    are told; of pods those with requests of their own.
    """
    pending = (c for c in status.conditions or () if c.type == "PodResizePending")
    is_infeasible = next((c.reason == "Infeasible" for c in pending), False)
    told = {
        each.name: each
        for each in (*(status.container_statuses or ()), *(status.init_container_statuses or ()))
        if each.resources is not None
    }
    restarting = (c for c in spec.init_containers or () if c.restart_policy == "Always")
    for holder in (*(spec.containers or ()), *restarting) if told else ():
        if (found := told.get(holder.name)) is not None:
            _count(holder, found, is_infeasible=is_infeasible)
    if status.resources is not None and text_of(spec.resources):
        _count(spec, status, is_infeasible=is_infeasible, only_asked=True)


def _count(
    holder: _Container | _Spec,
    told: _ContainerStatus | _Status,
    *,
    is_infeasible: bool,
    only_asked: bool = False,
) -> None:
    """Set the requests of a container or pod; ``only_asked``: of no other resource than it asks."""
    body: Obj = decode(text_of(holder.resources) or b"{}")
    asked = at(body, "requests", default={})
    actual = (told.resources or _Asked()).requests or {}
    sources = (actual, told.allocated_resources or {}, {} if is_infeasible else asked)
    names = {**asked, **at(body, "limits", default={})}
    if not only_asked:
        names |= {name: "" for each in sources for name in each}
    counted = {name: _largest(each.get(name) for each in sources) for name in names}
    if counted != asked:
        holder.resources = msgspec.Raw(msgspec.json.encode({**body, "requests": counted}))


def _largest(quantities: Iterable[Any]) -> Any:
    found = [each for each in quantities if each is not None]
    return max(found, key=parse_quantity, default="0")


def unread(kept: Obj, why: str) -> Obj:
    """The least that decisions on other pods need of what is kept of a pod: a kilobyte or two."""
    stub = _stub(kept, _spec_of(kept), why)
    metadata, spec, status = stub["metadata"], stub["spec"], stub["status"]
    for field in ("labels", "annotations"):
        metadata.pop(field, None)
    for holder, field in (
        (metadata, "ownerReferences"),
        (spec, "schedulingGates"),
        (spec, "resourceClaims"),
        (status, "resourceClaimStatuses"),
        (status, "conditions"),
    ):
        if field in holder:
            holder[field] = decoded(holder[field])[:_FEW_CLAIMS]
    return stub


def _metadata(metadata: _Metadata, annotations: Collection[str]) -> Obj:
    said = metadata.annotations or {}
    notes = {key: cut(said[key]) for key in annotations if key in said}
    return present(
        {
            "name": metadata.name,
            "namespace": metadata.namespace,
            "uid": metadata.uid,
            "labels": text_of(metadata.labels),
            "creationTimestamp": metadata.creation_timestamp,
            "deletionTimestamp": metadata.deletion_timestamp,
            "ownerReferences": _text(controllers(metadata.owner_references)),
            "annotations": _text(notes),
        }
    )


def _text(value: Any) -> bytes:
    """JSON of a value that is not empty; else no text."""
    return msgspec.json.encode(value) if value else b""


def _others(spec: _Spec) -> Obj:
    """Kept of every pod: the resources that it takes, the pods that it shuns, and its gang."""
    shunned = b""
    if affinity := text_of(spec.affinity):
        anti = msgspec.json.decode(affinity, type=_Shunning).pod_anti_affinity
        if anti is not None and (required := text_of(anti.required)) and required != b"[]":
            shunned = msgspec.json.encode(_Shunning(anti))
    return present(
        {
            "containers": _containers(spec.containers),
            "initContainers": _containers(spec.init_containers),
            "overhead": text_of(spec.overhead),
            "resources": text_of(spec.resources),
            "affinity": shunned,
            "priority": spec.priority,
            "nodeName": spec.node_name or None,
            "schedulingGroup": text_of(spec.scheduling_group),
            "workloadRef": text_of(spec.workload_ref),
        }
    )


def _own(spec: _Spec) -> Obj:
    """Kept of pods with claims: also the fields that decide where they may go."""
    scheduler = spec.scheduler_name or DEFAULT_SCHEDULER
    volumes = [v for v in map(_volume, spec.volumes or ()) if v is not None]
    return _others(spec) | present(
        {
            "affinity": text_of(spec.affinity),
            "nodeSelector": text_of(spec.node_selector),
            "tolerations": text_of(spec.tolerations),
            "topologySpreadConstraints": text_of(spec.topology_spread_constraints),
            "preemptionPolicy": spec.preemption_policy,
            "schedulingGates": _text(spec.scheduling_gates),
            "resourceClaims": _text(spec.resource_claims),
            "hostUsers": spec.host_users,
            "schedulerName": cut(scheduler) if scheduler != DEFAULT_SCHEDULER else None,
            "volumes": _text(volumes),
        }
    )


def _containers(containers: list[_Container] | None) -> bytes:
    for each in containers or ():
        if each.ports:
            each.ports = [port for port in each.ports if port.host_port] or None
    return _text(containers)


def _volume(volume: _Volume) -> Obj | None:
    """The part of a volume that leads to its PersistentVolumeClaim; None if it has none."""
    if claim := volume.persistent_volume_claim:
        return {"persistentVolumeClaim": {"claimName": claim.claim_name}}
    return {"name": volume.name, "ephemeral": {}} if text_of(volume.ephemeral) else None


def _status(status: _Status) -> Obj:
    own = [msgspec.to_builtins(c) for c in _own_conditions(status.conditions or [])]
    made = [msgspec.to_builtins(each) for each in status.resource_claim_statuses or ()]
    return present(
        {
            "phase": status.phase,
            "nominatedNodeName": status.nominated_node_name,
            "resourceClaimStatuses": made or None,
            "conditions": own or None,
            "started": _has_run(status) or None,
            "taken": (status.phase == "Pending" and status.start_time is not None) or None,
        }
    )


def _has_run(status: _Status) -> bool:
    """True if a container of the pod, such as an init container, has ever run."""
    told = (*(status.container_statuses or ()), *(status.init_container_statuses or ()))
    states = [each.state for each in told if each.state is not None]
    return any(each.restart_count for each in told) or any(
        text_of(state.running) or text_of(state.terminated) for state in states
    )


def _own_conditions(conditions: list[_Condition]) -> list[_Condition]:
    """Our own of a pod's conditions; of Kubernetes' that of a pod that was sent to kube-scheduler.

    That changes seldom then; of other pods it would be one more change to look at.
    """
    own = [c for c in conditions if "/" in c.type]
    if any(c.type.endswith(f"/{SENT}") for c in own):
        own += [c for c in conditions if c.type == "PodScheduled"]
    return own


_COMPARED = ("affinity", "topologySpreadConstraints", "tolerations")


def _excess(kept: Obj, spec: _Spec) -> str:
    """Excess of a pod over what is read of it, in words; empty where there is none."""
    texts = [*_texts(kept), msgspec.json.encode(kept["status"])]
    if sum(map(len, texts)) <= _USUAL_BYTES:
        return ""
    weight = sum(map(decoded_weight, texts))
    if weight > POD_BYTES:
        return f"labels and spec take {weight // 1024} KiB, and {POD_BYTES // 1024} are read"
    terms = sum(kept["spec"].get(field, b"").count(b"{") for field in _COMPARED)
    if terms > MOST_TERMS:
        return f"affinity, spread and tolerations have {terms} parts, and {MOST_TERMS} are read"
    for what, number, most in _counted(kept["spec"], spec):
        if number > most:
            return f"it has {number} {what}, and {most} are read"
    names = {name for body in _bodies(spec) for part in body for name in part}
    if len(names) > MOST_RESOURCES:
        return f"it asks for {len(names)} resources, and {MOST_RESOURCES} are read"
    return ""


def _texts(kept: Obj) -> Iterator[bytes]:
    for holder in (kept["metadata"], kept["spec"]):
        yield from (part for part in holder.values() if type(part) is bytes)


def _counted(kept: Obj, spec: _Spec) -> Iterator[tuple[str, int, int]]:
    """Kinds of things in a pod, each with its number and with the most that are read."""
    containers = (*(spec.containers or ()), *(spec.init_containers or ()))
    yield "claims", len(spec.resource_claims or ()), MOST_CLAIMS
    yield "volumes with claims", len(decoded(kept.get("volumes", ()))), MOST_VOLUMES
    yield "host ports", sum(len(each.ports or ()) for each in containers), MOST_PORTS


@decodable
class _Amounts(Part):
    requests: dict[str, msgspec.Raw] | None = None
    limits: dict[str, msgspec.Raw] | None = None


def _bodies(spec: _Spec) -> Iterator[tuple[dict[str, msgspec.Raw], ...]]:
    """The requests and limits of a pod and of its containers."""
    if overhead := text_of(spec.overhead):
        yield (msgspec.json.decode(overhead, type=dict[str, msgspec.Raw]),)
    holders = (spec, *(spec.containers or ()), *(spec.init_containers or ()))
    for text in filter(None, (text_of(each.resources) for each in holders)):
        asked = msgspec.json.decode(text, type=_Amounts)
        yield asked.requests or {}, asked.limits or {}


def _stub(kept: Obj, spec: _Spec, why: str) -> Obj:
    """The rest of a pod that is not read: the node's resources that it takes, gang and claims."""
    metadata, status, whole = dict(kept["metadata"]), dict(kept["status"]), kept["spec"]
    if decoded_weight(metadata.get("labels", b"")) > _LABELS_BYTES:
        del metadata["labels"]
    for field in ("resourceClaimStatuses", "conditions"):
        if field in status:
            status[field] = status[field][:_KEPT_CLAIMS]
    fields = ("nodeName", "priority", "preemptionPolicy", "schedulingGroup", "workloadRef")
    rest = {field: whole[field] for field in fields if field in whole}
    for name, found in (
        ("schedulingGates", spec.scheduling_gates),
        ("resourceClaims", spec.resource_claims),
    ):
        if found and name in whole:
            rest[name] = _text(found[:_KEPT_CLAIMS])
    rest["containers"] = _text([{"name": "", "resources": {"requests": _takes(spec)}}])
    return {"metadata": metadata, "spec": {**rest, UNREAD: why}, "status": status}


_Native = TypedDict("_Native", {"cpu": Any, "memory": Any, "ephemeral-storage": Any}, total=False)
"""The resources of a node itself."""


class _NativeAmounts(TypedDict, total=False):
    requests: _Native
    limits: _Native


class _NativeBody(Part):
    resources: _NativeAmounts | None = None
    restart_policy: str | None = None


@decodable
class _NativeSpec(Part):
    resources: _NativeAmounts | None = None
    overhead: _Native | None = None
    containers: list[_NativeBody] | None = None
    init_containers: list[_NativeBody] | None = None


def _takes(spec: _Spec) -> dict[str, str]:
    """The resources of a node itself that the pod takes."""
    native = msgspec.json.decode(msgspec.json.encode(_sizes(spec)), type=_NativeSpec)
    takes = effective_request(msgspec.to_builtins(native))
    names = (CPU, "memory", "ephemeral-storage")
    return {n: f"{takes[n]}m" if n == CPU else str(takes[n]) for n in names if n in takes}


def _sizes(spec: _Spec) -> Obj:
    parts = present({"resources": text_of(spec.resources), "overhead": text_of(spec.overhead)})
    raws = {key: msgspec.Raw(text) for key, text in parts.items()}
    return {**raws, "containers": spec.containers, "initContainers": spec.init_containers}


@decodable
class _SpecOf(Part):
    spec: _Spec


def _spec_of(kept: Obj) -> _Spec:
    """The spec that ``kept`` was made from, as far as it is kept."""
    raws = {k: msgspec.Raw(v) if type(v) is bytes else v for k, v in kept["spec"].items()}
    return msgspec.json.decode(msgspec.json.encode({"spec": raws}), type=_SpecOf).spec
