"""The resourceclaim controller: claims from templates, reservations that end, claims that go."""

from __future__ import annotations

import logging

from dra.claims.claims import SCHEDULER_FINALIZER, claim_names
from dra.common.resources import PODS, RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS, Obj, at
from dra.kube.client import KubeApi
from dra.kube.errors import ObjectNotFoundError
from dra.kube.events import EventRecorder
from dra.kube.reflector import Change, Reflector
from sim.kcm.decisions import (
    claim_change,
    claim_from_template,
    is_done,
    owner_pod,
    reservation,
    template_claims,
)
from sim.workqueue import WorkQueue

_log = logging.getLogger(__name__)

FIELD_MANAGER = "ResourceClaimController"
_POD, _CLAIM = "pod", "claim"


class ClaimController:
    """Follows pods and claims of all namespaces. Garbage collection is the API server's."""

    def __init__(self, api: KubeApi) -> None:
        self._api = api
        self._events = EventRecorder(api, component="resource_claim")
        self._queue = WorkQueue("resourceclaim", self._sync, first_retry=0.05)
        self._pods = Reflector(api, PODS, on_event=self._pod_changed)
        self._claims = Reflector(api, RESOURCE_CLAIMS, on_event=self._claim_changed)

    def start(self) -> None:
        """Begin."""
        self._pods.start()
        self._claims.start()
        self._queue.start()

    def stop(self) -> None:
        """Ends after the object at hand."""
        self._queue.stop()
        self._pods.stop()
        self._claims.stop()
        self._events.close()

    def _pod_changed(self, change: Change) -> None:
        pod = change.new or change.old
        if pod is None or not pod["spec"].get("resourceClaims"):
            return
        namespace, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
        self._queue.add(f"{_POD} {namespace} {name}")
        if change.new is None or is_done(pod):
            for claim in claim_names(pod).values():
                if claim is not None:
                    self._queue.add(f"{_CLAIM} {namespace} {claim}")

    def _claim_changed(self, change: Change) -> None:
        claim = change.new or change.old
        if claim is None:
            return
        namespace, name = claim["metadata"]["namespace"], claim["metadata"]["name"]
        if change.new is not None:
            self._queue.add(f"{_CLAIM} {namespace} {name}")
        # A deleted claim is made again; an allocated one may have to be reserved for a pod.
        for pod in self._pods.store.list():
            if pod["metadata"]["namespace"] == namespace and name in claim_names(pod).values():
                self._queue.add(f"{_POD} {namespace} {pod['metadata']['name']}")

    def _sync(self, key: str) -> None:
        if not (self._pods.wait_synced(60.0) and self._claims.wait_synced(60.0)):
            raise TimeoutError("pods and claims could not be listed within 60 s")
        kind, namespace, name = key.split(" ")
        store = self._pods.store if kind == _POD else self._claims.store
        obj = store.get(name, namespace)
        if obj is None:
            return
        try:
            if kind == _POD:
                self._sync_pod(obj)
            else:
                self._sync_claim(obj)
        except ObjectNotFoundError as error:
            _log.debug("%s: %s", key, error)

    def _sync_pod(self, pod: Obj) -> None:
        if "deletionTimestamp" in pod["metadata"] or is_done(pod):
            return
        namespace, uid = pod["metadata"]["namespace"], pod["metadata"]["uid"]
        claims = [c for c in self._claims.store.list() if c["metadata"]["namespace"] == namespace]
        names = template_claims(pod, [c for c in claims if owner_pod(c)[1] == uid])
        if names.missing:
            # The copy at hand may be older than our own last write.
            fresh = self._api.list(RESOURCE_CLAIMS, namespace=namespace).items
            names = template_claims(pod, [c for c in fresh if owner_pod(c)[1] == uid])
        for missing in names.missing:
            names.made[missing.pod_claim] = self._create(
                pod, missing.template, pod_claim=missing.pod_claim
            )
        recorded = {n: name for n, name in claim_names(pod).items() if n in names.made}
        if recorded != names.made:
            self._record(pod, names.made)
        if pod["spec"].get("nodeName"):
            used = claim_names(pod).values()
            for claim in claims:
                if claim["metadata"]["name"] in used:
                    self._reserve(pod, claim)

    def _create(self, pod: Obj, template_name: str, *, pod_claim: str) -> str:
        namespace = pod["metadata"]["namespace"]
        try:
            template = self._api.get(RESOURCE_CLAIM_TEMPLATES, template_name, namespace=namespace)
        except ObjectNotFoundError as error:
            message = f'PodResourceClaim {pod_claim}: resource claim template "{template_name}": '
            self._events.emit(
                pod, "FailedResourceClaimCreation", f"{message}not found", warning=True
            )
            raise LookupError(f"{message}not found") from error
        claim = claim_from_template(pod, template, pod_claim=pod_claim)
        created: str = self._api.create(RESOURCE_CLAIMS, claim)["metadata"]["name"]
        _log.info("created claim %s/%s", namespace, created)
        return created

    def _record(self, pod: Obj, made: dict[str, str]) -> None:
        statuses = [{"name": n, "resourceClaimName": claim} for n, claim in made.items()]
        metadata = pod["metadata"]
        body = {
            "metadata": {
                "name": metadata["name"],
                "namespace": metadata["namespace"],
                "uid": metadata["uid"],
            },
            "status": {"resourceClaimStatuses": statuses},
        }
        self._api.apply(PODS, body, field_manager=FIELD_MANAGER, subresource="status")

    def _reserve(self, pod: Obj, claim: Obj) -> None:
        if (status := reservation(pod, claim)) is not None:
            body = claim | {"status": status}
            self._api.replace(RESOURCE_CLAIMS, body, subresource="status")

    def _sync_claim(self, claim: Obj) -> None:
        namespace = claim["metadata"]["namespace"]
        change = claim_change(claim, lambda name: self._find_pod(name, namespace, claim))
        if change.status is not None:
            body = claim | {"status": change.status}
            claim = self._api.replace(RESOURCE_CLAIMS, body, subresource="status")
        if change.release:
            metadata = claim["metadata"]
            kept = [f for f in metadata.get("finalizers", ()) if f != SCHEDULER_FINALIZER]
            claim = self._api.replace(
                RESOURCE_CLAIMS, claim | {"metadata": metadata | {"finalizers": kept}}
            )
        if change.delete:
            metadata = claim["metadata"]
            _log.info("deleting claim %s/%s: its pod is done", namespace, metadata["name"])
            self._api.delete(
                RESOURCE_CLAIMS, metadata["name"], namespace=namespace, uid=metadata["uid"]
            )

    def _find_pod(self, name: str, namespace: str, claim: Obj) -> Obj | None:
        """The pod as watched; one that is reserved for but unknown is asked for, to be sure."""
        pod = self._pods.store.get(name, namespace)
        if pod is None and any(c["name"] == name for c in at(claim, "status", "reservedFor")):
            try:
                return self._api.get(PODS, name, namespace=namespace)
            except ObjectNotFoundError:
                return None
        return pod
