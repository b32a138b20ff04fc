"""Claims that kubelet prepares and unprepares."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from dra.claims.claims import claim_names
from dra.common.resources import RESOURCE_CLAIMS, Obj, at
from dra.gpu.inventory import ClaimRef
from dra.kube.client import KubeApi
from dra.kube.errors import KubeError, ObjectNotFoundError
from sim.kubelet.plugins import ClaimError, PluginRegistry, PreparedDevice


@dataclass(slots=True)
class ClaimInfo:
    """A claim that pods of this node use.

    ``devices`` is by driver and has every driver of the allocation from the start.
    """

    ref: ClaimRef
    pods: set[str] = field(default_factory=set)
    devices: dict[str, tuple[PreparedDevice, ...]] = field(default_factory=dict)
    prepared: bool = False


class ClaimManager:
    """The claims of the node's pods. Thread-safe."""

    def __init__(self, api: KubeApi, registry: PluginRegistry) -> None:
        self._api = api
        self._registry = registry
        self._lock = threading.Lock()
        self._claims: dict[tuple[str, str], ClaimInfo] = {}

    def prepare(self, pod: Obj) -> None:
        """NodePrepareResources for the pod's claims that are not prepared in this process.

        Raises:
            ClaimError: one of them cannot be prepared now; says why.
        """
        batches: dict[str, list[ClaimInfo]] = {}
        for pod_claim, name in claim_names(pod).items():
            if name is None:
                raise ClaimError(f"the claim of the pod's {pod_claim!r} has not been created yet")
            info = self._admit(pod, name)
            if not info.prepared:
                for driver in info.devices:
                    batches.setdefault(driver, []).append(info)
        for driver, infos in batches.items():
            plugin = self._registry.get(driver)
            if plugin is None:
                raise ClaimError(f"DRA driver {driver} is not registered")
            answers = plugin.prepare(info.ref for info in infos)
            with self._lock:
                for info in infos:
                    info.devices[driver] = answers[info.ref.uid]
        with self._lock:
            for infos in batches.values():
                for info in infos:
                    info.prepared = True

    def unprepare(self, pod_uid: str) -> None:
        """Gives up the pod's claims; NodeUnprepareResources for those that no other pod uses.

        Raises:
            ClaimError: a driver failed or is not registered; the claim stays and is to be retried.
        """
        with self._lock:
            used = [claim for claim in self._claims.values() if pod_uid in claim.pods]
            last = [claim for claim in used if claim.pods == {pod_uid}]
            for claim in used:
                if claim not in last:
                    claim.pods.discard(pod_uid)
        batches: dict[str, list[ClaimInfo]] = {}
        for claim in last:
            for driver in claim.devices:
                batches.setdefault(driver, []).append(claim)
        for driver, claims in batches.items():
            plugin = self._registry.get(driver)
            if plugin is None:
                raise ClaimError(
                    f"DRA driver {driver} is not registered: claim {claims[0].ref} stays prepared"
                )
            plugin.unprepare(claim.ref for claim in claims)
        with self._lock:
            for claim in last:
                self._claims.pop((claim.ref.namespace, claim.ref.name), None)

    def cdi_ids(self, pod: Obj, container: Mapping[str, Any]) -> list[str]:
        """CDI ids for one container, in the order of its claim references (GetResources)."""
        names = claim_names(pod)
        namespace = pod["metadata"]["namespace"]
        ids: list[str] = []
        with self._lock:
            for reference in at(container, "resources", "claims"):
                claim = self._claims.get((namespace, names.get(reference["name"]) or ""))
                if claim is not None:
                    ids += _ids(claim, reference.get("request", ""))
        return list(dict.fromkeys(ids))

    def held(self, pod: Obj, container: Mapping[str, Any]) -> list[ClaimInfo]:
        """The claims of one container; none if one of them is not known (GetDynamicResources)."""
        names = claim_names(pod)
        namespace = pod["metadata"]["namespace"]
        wanted = {names.get(each["name"]) for each in at(container, "resources", "claims")}
        with self._lock:
            found = [self._claims.get((namespace, name or "")) for name in wanted]
        return [claim for claim in found if claim is not None] if None not in found else []

    def _admit(self, pod: Obj, name: str) -> ClaimInfo:
        """Checks the claim as kubelet does before it calls a driver; remembers it with the pod."""
        namespace, uid = pod["metadata"]["namespace"], pod["metadata"]["uid"]
        try:
            claim = self._api.get(RESOURCE_CLAIMS, name, namespace=namespace)
        except ObjectNotFoundError as error:
            raise ClaimError(f"ResourceClaim {namespace}/{name} does not exist") from error
        except KubeError as error:
            raise ClaimError(f"ResourceClaim {namespace}/{name}: {error}") from error
        ref = ClaimRef(namespace, name, claim["metadata"]["uid"])
        _check_owner(pod, claim)
        status = claim.get("status", {})
        if not any(c["uid"] == uid for c in status.get("reservedFor", ())):
            raise ClaimError(
                f"pod {pod['metadata']['name']} is not allowed to use ResourceClaim {ref}: "
                "it is not in status.reservedFor"
            )
        if "allocation" not in status:
            raise ClaimError(f"ResourceClaim {ref} is not allocated")
        results = at(status["allocation"], "devices", "results")
        drivers = list(dict.fromkeys(r["driver"] for r in results))
        for driver in drivers:
            if self._registry.get(driver) is None:
                raise ClaimError(f"DRA driver {driver} is not registered")
        with self._lock:
            known = self._claims.get((namespace, name))
            if known is not None and known.ref.uid != ref.uid:
                raise ClaimError(
                    f"old ResourceClaim with same name {name} and different UID {known.ref.uid} "
                    "still exists (previous pod force-deleted?!)"
                )
            if known is None:
                known = ClaimInfo(ref, devices=dict.fromkeys(drivers, ()))
                self._claims[namespace, name] = known
            known.pods.add(uid)
            return known


def _check_owner(pod: Obj, claim: Obj) -> None:
    """A claim that was made for a pod belongs to that pod alone."""
    for owner in claim["metadata"].get("ownerReferences", ()):
        if owner.get("controller") and owner["kind"] == "Pod":
            if owner["uid"] != pod["metadata"]["uid"]:
                raise ClaimError(
                    f"ResourceClaim {claim['metadata']['name']} was made for another pod "
                    f"({owner['name']}, {owner['uid']})"
                )
            return


def _ids(claim: ClaimInfo, request: str) -> Iterator[str]:
    for devices in claim.devices.values():
        for device in devices:
            if not request or not device.request_names or request in device.request_names:
                yield from device.cdi_ids
