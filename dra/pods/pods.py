"""Pods as values: their needs of a node, their claims and their host ports.

A host port of a node is for one pod, on all addresses or on one.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import ceil
from typing import Any, NamedTuple

from dra.claims.claims import claim_names
from dra.common.quantity import QuantityError, parse_quantity
from dra.common.resources import Obj, ObjectKey, at
from dra.pods.selectors import ALONE, Company, indexed_term, read_company

_EVERY_ADDRESS = "0.0.0.0"  # noqa: S104 - compared, not bound


class HostPort(NamedTuple):
    """A port of the node that a container takes."""

    address: str
    protocol: str
    number: int

    def __str__(self) -> str:
        where = "" if self.address == _EVERY_ADDRESS else f" of {self.address}"
        return f"{self.protocol} {self.number}{where}"


def read_host_ports(spec: Mapping[str, Any]) -> tuple[HostPort, ...]:
    """The host ports of a pod's containers and sidecars; other init containers take none."""
    containers = [*at(spec, "containers")]
    containers += [c for c in at(spec, "initContainers") if c.get("restartPolicy") == "Always"]
    return tuple(dict.fromkeys(port for c in containers for port in _of(c)))


def _of(container: Mapping[str, Any]) -> Iterator[HostPort]:
    for port in at(container, "ports"):
        if number := port.get("hostPort"):
            address, protocol = port.get("hostIP"), port.get("protocol")
            yield HostPort(address or _EVERY_ADDRESS, protocol or "TCP", number)


Amounts = Mapping[str, int]

CPU = "cpu"
PODS = "pods"


READ_FIELDS = (
    *("containers", "initContainers", "overhead", "resources"),
    *("nodeSelector", "affinity", "tolerations", "topologySpreadConstraints", "preemptionPolicy"),
    "hostUsers",
)
"""The fields of a pod's spec that decide its needs."""


@dataclass(frozen=True, slots=True, eq=False)
class PodNeeds:
    """The part of a pod's spec that decides where it may run.

    ``requests`` is the effective request, with one of ``pods``. ``affinity_terms`` are those of the
    required node affinity, None when there is none. ``preempts``: pods of lower priority may be
    ended for this pod. ``own_users``: its containers run in a user namespace of their own.
    """

    requests: Amounts = field(default_factory=dict)
    node_selector: Mapping[str, str] = field(default_factory=dict)
    affinity_terms: tuple[Mapping[str, Any], ...] | None = None
    tolerations: tuple[Mapping[str, Any], ...] = ()
    host_ports: tuple[HostPort, ...] = ()
    company: Company = ALONE
    preempts: bool = True
    own_users: bool = False

    @property
    def parts(self) -> int:
        """Upper bound on the comparisons that show whether a node suits."""
        expressions = (len(at(term, "matchExpressions")) for term in self.affinity_terms or ())
        return 1 + sum(expressions) + len(self.tolerations)


def read_needs(spec: Mapping[str, Any]) -> PodNeeds:
    """The needs in a pod's ``spec``."""
    affinity = at(spec, "affinity", "nodeAffinity", default={})
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    terms = at(required or {}, "nodeSelectorTerms")
    return PodNeeds(
        requests=effective_request(spec),
        node_selector=at(spec, "nodeSelector", default={}),
        affinity_terms=None if required is None else tuple(map(indexed_term, terms)),
        tolerations=tuple(at(spec, "tolerations")),
        host_ports=read_host_ports(spec),
        company=read_company(spec),
        preempts=spec.get("preemptionPolicy") != "Never",
        own_users=spec.get("hostUsers") is False,
    )


def effective_request(spec: Mapping[str, Any]) -> dict[str, int]:
    """Resources that the scheduler reserves for a pod.

    The larger of what the containers take together and what the init containers take in their
    order, sidecars (init containers with restartPolicy Always) counting in both; pod-level
    requests replace the sum; overhead comes on top.
    """
    running: dict[str, int] = {}
    for container in at(spec, "containers"):
        _add(running, _requests(container))
    sidecars: dict[str, int] = {}
    starting: dict[str, int] = {}
    for container in at(spec, "initContainers"):
        wanted = _requests(container)
        if container.get("restartPolicy") == "Always":
            _add(sidecars, wanted)
            _raise(starting, sidecars)
        else:
            _add(wanted, sidecars)
            _raise(starting, wanted)
    _add(running, sidecars)
    _raise(running, starting)
    running |= _requests(spec)
    _add(running, amounts(at(spec, "overhead", default={})))
    _add(running, {PODS: 1})
    return running


def amounts(quantities: Mapping[str, Any]) -> dict[str, int]:
    """Whole amounts by resource; a quantity that does not parse counts as none."""
    result = {}
    for name, text in quantities.items():
        try:
            number = parse_quantity(text)
        except QuantityError:
            continue
        result[name] = ceil(number * 1000) if name == CPU else ceil(number)
    return result


def _requests(holder: Mapping[str, Any]) -> dict[str, int]:
    """Requests of a container or pod; a limit without a request is one (the API defaults it)."""
    limits = at(holder, "resources", "limits", default={})
    return amounts(limits | at(holder, "resources", "requests", default={}))


def _add(total: dict[str, int], more: Amounts) -> None:
    for name, amount in more.items():
        total[name] = total.get(name, 0) + amount


def _raise(level: dict[str, int], to: Amounts) -> None:
    for name, amount in to.items():
        level[name] = max(level.get(name, 0), amount)


class WantedPorts:
    """Host ports that a pod wants; they are compared once with each different ``PodNeeds``."""

    def __init__(self, wanted: Iterable[HostPort]) -> None:
        self._places: dict[HostPort, int] = {}
        self._of_number: dict[tuple[str, int], list[HostPort]] = {}
        for place, port in enumerate(wanted):
            self._places[port] = place
            self._of_number.setdefault((port.protocol, port.number), []).append(port)
        self._known: dict[PodNeeds, HostPort | None] = {}

    def find_conflict(self, holders: Iterable[PodNeeds]) -> HostPort | None:
        """The first wanted port that conflicts with one of ``holders``; None if none does."""
        if not self._places:
            return None
        found = (self._of(holder) for holder in holders if holder.host_ports)
        ports = (port for port in found if port is not None)
        return min(ports, key=self._places.__getitem__, default=None)

    def _of(self, holder: PodNeeds) -> HostPort | None:
        if holder not in self._known:
            self._known[holder] = self._compare(holder.host_ports)
        return self._known[holder]

    def _compare(self, taken: Iterable[HostPort]) -> HostPort | None:
        ruled_out = (
            port
            for other in taken
            for port in self._of_number.get((other.protocol, other.number), ())
            if port.address == other.address or _EVERY_ADDRESS in (port.address, other.address)
        )
        return min(ruled_out, key=self._places.__getitem__, default=None)


DEFAULT_SCHEDULER = "default-scheduler"
"""Name of kube-scheduler, which the API server puts where a pod names none (``schedulerName``)."""

UNREAD = "unread"
"""Field of the spec of a pod that is too large to be read: the reason, in words."""

_ENDED = ("Succeeded", "Failed")


@dataclass(frozen=True, slots=True, eq=False)
class Pod:
    """A pod; ``claims`` maps its claim names to ResourceClaims, None while there is none yet.

    ``claim_keys``: the ResourceClaims that exist, as far as its status tells, each once; a pod may
    have the same claim under several names. ``volume_claims``: its PersistentVolumeClaims, each
    with True if it belongs to the pod. ``nominated``: the node on which kube-scheduler makes room
    for it. ``template``: equal for pods of one owner. ``unread``: why the pod is not served; empty
    if it is. ``started``: a container of it, such as an init container, has run. ``taken``: it is
    pending and kubelet has seen it, which kubelet tells before it asks for claims (``startTime``;
    pkg/kubelet/kubelet.go, ``SyncPod``).
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
    started: bool = False
    taken: bool = False

    @property
    def live(self) -> bool:
        """True if it may still use its claims: until it has ended or is gone."""
        return self.phase not in _ENDED

    @property
    def pending(self) -> bool:
        """True if it waits to be started."""
        return self.phase in ("", "Pending") and not self.deleting

    @property
    def is_controlled(self) -> bool:
        """True if a controller makes another pod in its place."""
        return self.template != self.uid

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
        started=at(obj, "status", "started", default=False),
        taken=at(obj, "status", "taken", default=False),
    )


Urgency = tuple[int, str, str, str]


def urgency(pod: Pod) -> Urgency:
    """Sort key of a pod in the line: higher priority first, then older, then by name."""
    return (-pod.priority, pod.created, *pod.key)


def priority(place: Urgency) -> int:
    return -place[0]


def with_claim(pod: Pod, entry: str, claim: str) -> Pod:
    """``pod`` with a ResourceClaim for its ``entry``, which its status does not name yet."""
    keys = dict.fromkeys((*pod.claim_keys, (pod.key[0], claim)))
    return replace(pod, claims={**pod.claims, entry: claim}, claim_keys=tuple(keys))


def _volume_claims(pod: str, spec: Mapping[str, Any]) -> Iterator[tuple[str, bool]]:
    """The names of a pod's PersistentVolumeClaims, each with True if it belongs to the pod.

    A volume that lives as long as its pod has a claim whose name is made from both names.
    """
    for volume in at(spec, "volumes"):
        if claim := volume.get("persistentVolumeClaim"):
            yield claim["claimName"], False
        elif "ephemeral" in volume:
            yield f"{pod}-{volume['name']}", True


def _integer(value: Any) -> int:
    return value if isinstance(value, int) else 0
