"""ResourceClaims (resource.k8s.io/v1) as values, read from the objects as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from dra.claims.allocation import Allocation, read_allocation
from dra.common.resources import at
from dra.gpu.inventory import ClaimRef

SCHEDULER_FINALIZER = "resource.kubernetes.io/delete-protection"
"""Finalizer of kube-scheduler on claims that it allocates; kube-controller-manager removes it."""

CROWDED = "crowded"
"""Field of a request that a reader has cut: its namespace has too many large claims."""

TOO_LARGE = "tooLarge"
"""Field of a request that a reader has cut; the value is the size of its claim in bytes."""

OTHERS_CONFIG = "othersConfig"
"""Field of ``spec.devices``: the configuration for other drivers was taken away."""

ALLOCATED_BY = "allocatedBy"
"""Field of metadata, instead of managedFields: the managers of ``status.allocation``."""

POD_CLAIM = "resource.kubernetes.io/pod-claim-name"
"""Annotation of a claim made from a template: the entry of the pod's ``spec.resourceClaims``."""

EXACT_COUNT = "ExactCount"
ALL = "All"


@dataclass(frozen=True, slots=True)
class Request:
    """One request of a claim, or one of its subrequests, which is called ``request/subrequest``.

    A request with ``alternatives`` (``firstAvailable``, best first) has no content of its own.
    ``capacity`` maps the names of capacities to the least quantity. ``unsupported`` says in words
    why we cannot allocate it, and is empty when we can.
    """

    name: str
    class_name: str
    selectors: tuple[str, ...] = ()
    count: int = 1
    mode: str = EXACT_COUNT
    admin_access: bool = False
    unsupported: str = ""
    tolerations: tuple[Mapping[str, Any], ...] = ()
    capacity: tuple[tuple[str, str], ...] = ()
    alternatives: tuple[Request, ...] = ()

    @property
    def choices(self) -> tuple[Request, ...]:
        """Choices that serve the request, best first: its alternatives, or itself."""
        return self.alternatives or (self,)


@dataclass(frozen=True, slots=True)
class Consumer:
    """An entry of ``status.reservedFor``."""

    resource: str
    name: str
    uid: str
    api_group: str = ""


class MadeFor(NamedTuple):
    """Pod for which a claim was made from a template; ``entry`` of its ``spec.resourceClaims``."""

    pod: str
    uid: str
    entry: str


@dataclass(frozen=True, slots=True)
class Claim:
    """A ResourceClaim. ``constraints`` and ``config`` are those of its spec, as JSON.

    ``others_config``: it has configuration for other drivers, which is not kept. ``allocated_by``:
    the field managers that wrote the allocation, where the API server says so.
    """

    ref: ClaimRef
    resource_version: str
    requests: tuple[Request, ...]
    constraints: tuple[Mapping[str, Any], ...] = ()
    config: tuple[Mapping[str, Any], ...] = ()
    allocation: Allocation | None = None
    reserved_for: tuple[Consumer, ...] = ()
    finalizers: tuple[str, ...] = ()
    deleting: bool = False
    owner_pod_uid: str = ""
    created: str = ""
    others_config: bool = False
    allocated_by: tuple[str, ...] = ()

    @property
    def views(self) -> bool:
        """True if any request only looks at devices (``adminAccess``)."""
        return any(choice.admin_access for r in self.requests for choice in r.choices)

    @property
    def ended_by_control_plane(self) -> bool:
        """True if kube-controller-manager ends its allocation, which only the finalizer decides."""
        return SCHEDULER_FINALIZER in self.finalizers

    def by_others(self, driver: str) -> bool:
        """True if the controller of ``driver`` did not make the allocation, and so does not end it.

        The API server says who wrote it. A finalizer proves nothing: any user may set one, and
        kube-scheduler leaves its own on claims that it gave up.
        """
        if self.allocated_by:
            return field_manager(driver) not in self.allocated_by
        return self.ended_by_control_plane


def read_requests(raw: Iterable[Mapping[str, Any]]) -> tuple[Request, ...]:
    """The requests in ``spec.devices.requests``."""
    return tuple(_read_request(entry) for entry in raw)


def read_claim(
    obj: Mapping[str, Any],
    requests: Callable[[Iterable[Mapping[str, Any]]], tuple[Request, ...]] = read_requests,
) -> Claim:
    """The claim in ``obj``, as the API server returned it; ``requests`` reads its requests."""
    metadata, status = obj["metadata"], at(obj, "status", default={})
    devices, allocation = at(obj, "spec", "devices", default={}), status.get("allocation")
    owner = _owner_pod(at(metadata, "ownerReferences"))
    asked = requests(at(devices, "requests"))
    return Claim(
        ref=ClaimRef(metadata["namespace"], metadata["name"], metadata["uid"]),
        resource_version=metadata.get("resourceVersion", ""),
        requests=asked,
        constraints=tuple(at(devices, "constraints")),
        config=tuple(at(devices, "config")),
        allocation=None if allocation is None else classed(read_allocation(allocation), asked),
        reserved_for=tuple(_read_consumer(c) for c in at(status, "reservedFor")),
        finalizers=tuple(at(metadata, "finalizers")),
        deleting="deletionTimestamp" in metadata,
        owner_pod_uid=str(owner["uid"]) if owner is not None else "",
        created=metadata.get("creationTimestamp", ""),
        others_config=OTHERS_CONFIG in devices,
        allocated_by=() if allocation is None else allocation_managers(metadata),
    )


def classed(allocation: Allocation, requests: Iterable[Request]) -> Allocation:
    """``allocation`` with the class of each device's request, as found in ``requests``."""
    names = {c.name: c.class_name for request in requests for c in request.choices}
    devices = (replace(d, class_name=names.get(d.request, "")) for d in allocation.devices)
    return replace(allocation, devices=tuple(devices))


def field_manager(driver: str) -> str:
    """The name under which the controller of ``driver`` writes."""
    return f"{driver}/controller"


def allocation_managers(metadata: Mapping[str, Any]) -> tuple[str, ...]:
    """Field managers of a claim's allocation, by its metadata; empty where it names none."""
    if ALLOCATED_BY in metadata:
        return tuple(metadata[ALLOCATED_BY])
    return tuple(
        entry.get("manager") or ""
        for entry in at(metadata, "managedFields")
        if "f:allocation" in at(entry, "fieldsV1", "f:status")
    )


def claim_names(pod: Mapping[str, Any]) -> dict[str, str | None]:
    """Pod claim name to ResourceClaim name, for the claims in a pod's ``spec.resourceClaims``.

    None stands for a claim that is still to be created from its template. A template that made no
    claim (``resourceClaimStatuses[].resourceClaimName`` absent) is left out.
    """
    made = {
        s["name"]: s.get("resourceClaimName") for s in at(pod, "status", "resourceClaimStatuses")
    }
    names: dict[str, str | None] = {}
    for entry in at(pod, "spec", "resourceClaims"):
        name = entry["name"]
        if "resourceClaimName" in entry:
            names[name] = entry["resourceClaimName"]
        elif name not in made:
            names[name] = None
        elif made[name] is not None:
            names[name] = made[name]
    return names


def made_for(obj: Mapping[str, Any]) -> MadeFor | None:
    """The pod for which kube-controller-manager made a claim; None if it did not make the claim.

    It is read from the annotation and the owner that kube-controller-manager gives the claim. The
    pod's status names the claim only later. If kube-controller-manager ends in between, it finds
    the claim by these two and makes no other (findPodResourceClaim in its resourceclaim
    controller.go, 1.36): the pod will get this claim, even before the pod's status says so.
    """
    metadata = obj["metadata"]
    entry = at(metadata, "annotations", POD_CLAIM, default="")
    owner = _owner_pod(at(metadata, "ownerReferences")) if entry else None
    return MadeFor(owner["name"], owner["uid"], entry) if owner is not None else None


def _read_request(entry: Mapping[str, Any]) -> Request:
    name = entry["name"]
    if "exactly" in entry:
        return _read_exact(name, entry["exactly"])
    if "firstAvailable" in entry:
        subrequests = tuple(_read_exact(f"{name}/{s['name']}", s) for s in entry["firstAvailable"])
        told = next((s.unsupported for s in subrequests if s.unsupported), "")
        return Request(name, "", alternatives=subrequests, unsupported=told)
    return Request(
        name, "", unsupported="it is of a kind that is not known; use exactly or firstAvailable"
    )


def _read_exact(name: str, body: Mapping[str, Any]) -> Request:
    mode = body.get("allocationMode", EXACT_COUNT)
    unsupported = ""
    if mode not in {EXACT_COUNT, ALL}:
        unsupported = f"allocationMode {mode} is not known; use {EXACT_COUNT} or {ALL}"
    if TOO_LARGE in body:
        unsupported = (
            f"the claim's requests, constraints and parameters have {body[TOO_LARGE]} bytes, more "
            "than this driver reads: state fewer or shorter selectors and parameters, or put "
            "requests into claims of other pods"
        )
    if CROWDED in body:
        unsupported = (
            "the large claims of its namespace take more memory together than this driver keeps: "
            "delete some, or state fewer or shorter selectors and parameters in them, and create "
            "this one anew"
        )
    capacity = at(body, "capacity", "requests", default={})
    return Request(
        name=name,
        class_name=body.get("deviceClassName", ""),
        selectors=_expressions(at(body, "selectors")),
        count=body.get("count", 1),
        mode=mode,
        admin_access=bool(body.get("adminAccess")),
        unsupported=unsupported,
        tolerations=tuple(at(body, "tolerations")),
        capacity=tuple(sorted((n, str(quantity)) for n, quantity in capacity.items())),
    )


def _expressions(selectors: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    """CEL expressions of a list of DeviceSelectors; a selector of another kind matches nothing."""
    return tuple(s["cel"]["expression"] if "cel" in s else "false" for s in selectors)


def class_selectors(device_class: Mapping[str, Any]) -> tuple[str, ...]:
    """CEL expressions of a DeviceClass; all must hold."""
    return _expressions(at(device_class, "spec", "selectors"))


def class_config(device_class: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...]:
    """``spec.config`` of a DeviceClass, as JSON."""
    return tuple(at(device_class, "spec", "config"))


def _read_consumer(entry: Mapping[str, Any]) -> Consumer:
    return Consumer(entry["resource"], entry["name"], entry["uid"], entry.get("apiGroup", ""))


def _owner_pod(owners: Iterable[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    return next((o for o in owners if o.get("kind") == "Pod" and o.get("controller")), None)


_NAMED = 6


class Use(NamedTuple):
    """A ResourceClaim that a container uses: one request of it, or all if none is named."""

    claim: str
    request: str = ""


def container_uses(
    pod: Mapping[str, Any], names: Mapping[str, str | None]
) -> Iterator[tuple[str, frozenset[Use]]]:
    """The containers of a pod, each with what it uses of ResourceClaims.

    ``names`` are those of ``claim_names``. The claim that kube-scheduler has made for the pod's
    extended resources is among the used ones.
    """
    made = at(pod, "status", "extendedResourceClaimStatus", default={})
    for field in ("initContainers", "containers"):
        for container in at(pod, "spec", field):
            used = {
                Use(name, entry.get("request") or "")
                for entry in at(container, "resources", "claims")
                if (name := names.get(entry["name"])) is not None
            }
            used |= {
                Use(made["resourceClaimName"], mapping.get("requestName") or "")
                for mapping in at(made, "requestMappings")
                if mapping["containerName"] == container["name"]
            }
            yield container["name"], frozenset(used)


def lacks_request(wanted: str, requests: Iterable[str]) -> str:
    """Fault of a container that names a request which its claim lacks."""
    return f"the claim has no request {wanted!r}; there are: {', '.join(requests)}"


def nobody_uses(claim: str) -> str:
    """Fault of a pod's claim that no container names."""
    return (
        f"no container uses claim {claim!r}: it is allocated, and nobody sees the slice; name it "
        "in resources.claims of a container"
    )


def find_unseen(
    pod: Mapping[str, Any], names: Mapping[str, str | None], claims: Iterable[Claim]
) -> str:
    """Devices of ``claims`` that no container of a pod gets, in words; empty if none.

    ``names`` are those of ``claim_names``.
    """
    used = [(c, use) for c, uses in container_uses(pod, names) for use in sorted(uses)]
    faults = []
    for claim in claims:
        requests = [request.name for request in claim.requests]
        of_claim = [(c, use.request) for c, use in used if use.claim == claim.ref.name]
        if not of_claim:
            faults.append(nobody_uses(claim.ref.name))
        faults += [
            f"container {container!r} gets no device of claim {claim.ref.name!r}: "
            + lacks_request(request, requests)
            for container, request in of_claim
            if request and request not in requests
        ]
    return "; ".join(faults)


def find_crowd(uses: Iterable[Use], by_mps: Mapping[str, Mapping[str, bool]]) -> tuple[Use, ...]:
    """Requests that a container uses, if one is shared by MPS and there are others; else empty.

    ``by_mps``: by claim and request, True if the device is shared by MPS; claims that are not in it
    do not count. The requests shared by MPS come first.
    """
    used = {
        Use(each.claim, request)
        for each in uses
        for request in by_mps.get(each.claim, ())
        if each.request in ("", request)
    }
    ordered = sorted(used, key=lambda use: (not by_mps[use.claim][use.request], use))
    if len(ordered) < 2 or not by_mps[ordered[0].claim][ordered[0].request]:  # noqa: PLR2004
        return ()
    return tuple(ordered)


def crowded(container: str, uses: Iterable[Use]) -> str:
    """Fault of a container that uses a device shared by MPS together with other devices."""
    uses = sorted(uses)
    requests = Counter(use.claim for use in uses)
    names = ", ".join(
        use.claim if requests[use.claim] == 1 else f"{use.claim}/{use.request}"
        for use in uses[:_NAMED]
    )
    more = f" and {len(uses) - _NAMED} more" if len(uses) > _NAMED else ""
    return (
        f"container {container!r} uses claims {names}{more}, of which at least one has "
        "sharing.strategy 'MPS': a container is a client of one MPS daemon, which serves one "
        "device; name one of these claims in its resources.claims, with its request where it has "
        "several, the others in other containers"
    )
