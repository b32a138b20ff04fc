"""Stand-in for kube-controller-manager: claims of pods, their consumers, their end."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import click

from dra.claims.claims import POD_CLAIM, SCHEDULER_FINALIZER, claim_names
from dra.common.resources import PODS, RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS, Obj, at
from dra.kube.client import KubeApi
from dra.kube.errors import ObjectNotFoundError
from dra.kube.events import EventRecorder
from dra.kube.reflector import Change, Reflector
from sim.daemon import WorkQueue, configure_logging, run_until_signal

_MAX_CONSUMERS = 256
_TERMINAL = frozenset({"Succeeded", "Failed"})


@dataclass(frozen=True, slots=True)
class ClaimChange:
    """Change of a claim.

    ``status`` is the new status or None, ``release`` asks to drop the delete-protection finalizer,
    ``delete`` to delete the claim; in this order.
    """

    status: Obj | None = None
    release: bool = False
    delete: bool = False


def is_done(pod: Obj) -> bool:
    """True if the pod will use its claims no more."""
    return at(pod, "status", "phase") in _TERMINAL or (
        "deletionTimestamp" in pod["metadata"] and not pod["spec"].get("nodeName")
    )


def owner_pod(claim: Obj) -> tuple[str, str]:
    """``(name, uid)`` of the pod that a claim was made for, or two ""."""
    for owner in claim["metadata"].get("ownerReferences", ()):
        if owner.get("controller") and owner["kind"] == "Pod" and owner["apiVersion"] == "v1":
            return owner["name"], owner["uid"]
    return "", ""


def template_claims(pod: Obj, owned: Iterable[Obj]) -> tuple[dict[str, str], dict[str, str]]:
    """Template claims of a pod: the names of those that it owns, and the templates of the others.

    Both by their names in the pod.
    """
    by_pod_claim = {
        claim["metadata"].get("annotations", {}).get(POD_CLAIM): claim["metadata"]["name"]
        for claim in owned
    }
    made: dict[str, str] = {}
    missing: dict[str, str] = {}
    for entry in pod["spec"].get("resourceClaims", ()):
        if "resourceClaimTemplateName" not in entry:
            continue
        if name := by_pod_claim.get(entry["name"]):
            made[entry["name"]] = name
        else:
            missing[entry["name"]] = entry["resourceClaimTemplateName"]
    return made, missing


def claim_from_template(pod: Obj, template: Obj, *, pod_claim: str) -> Obj:
    """The claim to create."""
    metadata = pod["metadata"]
    wanted = copy.deepcopy(template["spec"])
    given = wanted.get("metadata", {})
    return {
        "apiVersion": RESOURCE_CLAIMS.api_version,
        "kind": RESOURCE_CLAIMS.kind,
        "metadata": {
            "generateName": f"{metadata['name']}-{pod_claim}-",
            "namespace": metadata["namespace"],
            "labels": given.get("labels", {}),
            "annotations": given.get("annotations", {}) | {POD_CLAIM: pod_claim},
            "ownerReferences": [
                {
                    "apiVersion": "v1",
                    "kind": "Pod",
                    "name": metadata["name"],
                    "uid": metadata["uid"],
                    "controller": True,
                    "blockOwnerDeletion": True,
                }
            ],
        },
        "spec": wanted["spec"],
    }


def reservation(pod: Obj, claim: Obj) -> Obj | None:
    """The status of an allocated claim with this pod in ``reservedFor``; None if it is there.

    kube-scheduler reserves for the pods that it binds; this is for those that came with a node.
    """
    status: Obj = claim.get("status", {})
    reserved = status.get("reservedFor", [])
    uid = pod["metadata"]["uid"]
    if (
        "allocation" not in status
        or any(c["uid"] == uid for c in reserved)
        or len(reserved) >= _MAX_CONSUMERS
    ):
        return None
    consumer = {"resource": "pods", "name": pod["metadata"]["name"], "uid": uid}
    return status | {"reservedFor": [*reserved, consumer]}


def claim_change(claim: Obj, find_pod: Callable[[str], Obj | None]) -> ClaimChange:
    """Decides on a claim, given a look-up of the pods of its namespace by name.

    Reservations of pods that are done, gone or replaced end; consumers of other kinds stay. With
    the last reservation an allocation ends only under the delete-protection finalizer: a claim
    without it stays allocated.
    """
    status = claim.get("status", {})
    reserved = status.get("reservedFor", [])
    valid = [c for c in reserved if _uses(c, find_pod)]
    protected = SCHEDULER_FINALIZER in claim["metadata"].get("finalizers", ())
    deleting = "deletionTimestamp" in claim["metadata"]
    change: Obj | None = None
    if len(valid) < len(reserved):
        change = {k: v for k, v in status.items() if k != "reservedFor"}
        if valid:
            change["reservedFor"] = valid
    after = change if change is not None else status
    ends = not valid and protected and (change is not None or deleting)
    if ends and "allocation" in after:
        change = {k: v for k, v in after.items() if k not in {"allocation", "devices"}}
    name, uid = owner_pod(claim)
    pod = find_pod(name) if name else None
    owner_done = pod is not None and pod["metadata"]["uid"] == uid and is_done(pod)
    return ClaimChange(
        status=change, release=ends, delete=not valid and owner_done and not deleting
    )


def _uses(consumer: Obj, find_pod: Callable[[str], Obj | None]) -> bool:
    if consumer.get("apiGroup") or consumer["resource"] != "pods":
        return True
    pod = find_pod(consumer["name"])
    return pod is not None and pod["metadata"]["uid"] == consumer["uid"] and not is_done(pod)


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
        made, missing = template_claims(pod, [c for c in claims if owner_pod(c)[1] == uid])
        if missing:
            # The copy at hand may be older than our own last write.
            fresh = self._api.list(RESOURCE_CLAIMS, namespace=namespace).items
            made, missing = template_claims(pod, [c for c in fresh if owner_pod(c)[1] == uid])
        for pod_claim, template in missing.items():
            made[pod_claim] = self._create(pod, template, pod_claim=pod_claim)
        recorded = {n: name for n, name in claim_names(pod).items() if n in made}
        if recorded != made:
            self._record(pod, made)
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


@click.command()
@click.option("--kubeconfig", type=click.Path(exists=True, dir_okay=False))
@click.option("--log-level", default="info", show_default=True)
def main(kubeconfig: str | None, log_level: str) -> None:
    """Stand in for what kube-controller-manager does with ResourceClaims."""
    configure_logging(log_level)
    run_until_signal(ClaimController(KubeApi.connect(kubeconfig, user_agent="kcm-stand-in")))
