"""Pods as values, with the fields that the controller needs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from dra.claims.claims import claim_names
from dra.common.resources import Obj, ObjectKey, at
from dra.pods.podneeds import PodNeeds, read_needs

DEFAULT_SCHEDULER = "default-scheduler"
"""Name of kube-scheduler, which the API server puts where a pod names none (``schedulerName``)."""

UNREAD = "unread"
"""Field of the spec of a pod that is too large to be read: the reason, in words."""

_ENDED = ("Succeeded", "Failed")


@dataclass(frozen=True, slots=True, eq=False)
class Pod:
    """A pod; ``claims`` maps its claim names to ResourceClaims, None while there is none yet.

    ``claim_keys`` are the ResourceClaims that exist, as far as its status tells, each once: a pod
    may have the same claim under several names. ``volume_claims`` are its PersistentVolumeClaims,
    and True for those that belong to the pod. ``nominated`` is the node that kube-scheduler makes
    room on for it. ``template`` is equal for pods of one owner. ``unread`` says why the pod is not
    served; empty of most.
    """

    key: ObjectKey
    uid: str
    obj: Obj
    needs: PodNeeds
    claims: Mapping[str, str | None]
    claim_keys: tuple[ObjectKey, ...]
    node: str
    gates: tuple[str, ...]
    priority: int
    created: str
    phase: str
    deleting: bool
    labels: Mapping[str, str] = field(default_factory=dict)
    volume_claims: tuple[tuple[str, bool], ...] = ()
    nominated: str = ""
    template: str = ""
    unread: str = ""
    scheduler: str = DEFAULT_SCHEDULER

    @property
    def live(self) -> bool:
        """True if it may still use its claims: until it has ended or is gone."""
        return self.phase not in _ENDED

    @property
    def pending(self) -> bool:
        """True if it waits to be started."""
        return self.phase in ("", "Pending") and not self.deleting

    def __str__(self) -> str:
        return f"{self.key[0]}/{self.key[1]}"


def read_pod(obj: Obj, needs: Callable[[Obj], PodNeeds] = read_needs) -> Pod:
    """The pod in ``obj``; ``needs`` reads what its spec asks of a node."""
    metadata, spec = obj["metadata"], at(obj, "spec", default={})
    claims, namespace = claim_names(obj), metadata["namespace"]
    # A user writes the reference, and may name the owner of another namespace's pods.
    owners = (
        f"{namespace}/{o['uid']}" for o in at(metadata, "ownerReferences") if o.get("controller")
    )
    return Pod(
        key=(namespace, metadata["name"]),
        uid=metadata["uid"],
        obj=obj,
        needs=needs(spec),
        claims=claims,
        claim_keys=tuple(
            (namespace, name) for name in dict.fromkeys(claims.values()) if name is not None
        ),
        node=spec.get("nodeName") or "",
        gates=tuple(g["name"] for g in at(spec, "schedulingGates")),
        priority=_integer(spec.get("priority")),
        created=metadata.get("creationTimestamp") or "",
        phase=at(obj, "status", "phase", default=""),
        deleting="deletionTimestamp" in metadata,
        labels=at(metadata, "labels", default={}),
        volume_claims=tuple(_volume_claims(metadata["name"], spec)),
        template=sys.intern(next(owners, metadata["uid"])),
        nominated=at(obj, "status", "nominatedNodeName", default=""),
        unread=spec.get(UNREAD) or "",
        scheduler=sys.intern(spec.get("schedulerName") or DEFAULT_SCHEDULER),
    )


def with_claim(pod: Pod, entry: str, claim: str) -> Pod:
    """``pod`` with a ResourceClaim under the name ``entry``, of which its status says nothing."""
    keys = dict.fromkeys((*pod.claim_keys, (pod.key[0], claim)))
    return replace(pod, claims={**pod.claims, entry: claim}, claim_keys=tuple(keys))


def _volume_claims(pod: str, spec: Mapping[str, Any]) -> Iterator[tuple[str, bool]]:
    """A volume that lives as long as its pod has a claim that is named by both."""
    for volume in at(spec, "volumes"):
        if claim := volume.get("persistentVolumeClaim"):
            yield claim["claimName"], False
        elif "ephemeral" in volume:
            yield f"{pod}-{volume['name']}", True


def _integer(value: Any) -> int:
    return value if isinstance(value, int) else 0
