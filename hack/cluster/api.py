"""A small JSON client, independent of the driver's transport."""

from __future__ import annotations

import json
import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any

from dra.common.resources import Obj

_COLLECTIONS = {
    ("v1", "Namespace"): "/api/v1/namespaces",
    ("v1", "Node"): "/api/v1/nodes",
    ("v1", "Pod"): "/api/v1/namespaces/{namespace}/pods",
    ("v1", "PersistentVolume"): "/api/v1/persistentvolumes",
    ("v1", "PersistentVolumeClaim"): "/api/v1/namespaces/{namespace}/persistentvolumeclaims",
    ("v1", "ConfigMap"): "/api/v1/namespaces/{namespace}/configmaps",
    ("v1", "Event"): "/api/v1/namespaces/{namespace}/events",
    ("apiextensions.k8s.io/v1", "CustomResourceDefinition"): (
        "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    ),
    ("coordination.k8s.io/v1", "Lease"): (
        "/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
    ),
    ("apps/v1", "ReplicaSet"): "/apis/apps/v1/namespaces/{namespace}/replicasets",
    ("mig.dra.dev/v1alpha1", "MigNode"): "/apis/mig.dra.dev/v1alpha1/mignodes",
    ("resource.k8s.io/v1", "DeviceClass"): "/apis/resource.k8s.io/v1/deviceclasses",
    ("resource.k8s.io/v1", "ResourceSlice"): "/apis/resource.k8s.io/v1/resourceslices",
    ("resource.k8s.io/v1", "ResourceClaim"): (
        "/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaims"
    ),
    ("resource.k8s.io/v1", "ResourceClaimTemplate"): (
        "/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaimtemplates"
    ),
    ("scheduling.k8s.io/v1alpha2", "PodGroup"): (
        "/apis/scheduling.k8s.io/v1alpha2/namespaces/{namespace}/podgroups"
    ),
}


class ApiError(Exception):
    """An answer of 400 or above."""

    def __init__(self, status: int, body: str) -> None:
        super().__init__(f"{status}: {body}")
        self.status = status


def collection(kind: str, *, namespace: str = "default") -> str:
    """The path of all objects of a kind in the table above, in `namespace` if it has one."""
    (path,) = (path for (_, known), path in _COLLECTIONS.items() if known == kind)
    return path.format(namespace=namespace)


class Api:
    """Requests to one API server under one token."""

    def __init__(self, server: str, token: str, *, certificate: Path) -> None:
        self._server = server
        self.headers = {"Authorization": f"Bearer {token}", "User-Agent": "hack-cluster"}
        self._certificate = certificate

    def request(
        self, method: str, path: str, *, body: Any = None, content: str = "application/json"
    ) -> Obj:
        """The decoded answer, `{"text": ...}` if it is no JSON object.

        Raises:
            ApiError: for every refusal.
            OSError: the server does not answer.
        """
        request = urllib.request.Request(
            self._server + path,
            method=method,
            headers=self.headers | {"Content-Type": content},
            data=None if body is None else json.dumps(body, separators=(",", ":")).encode(),
        )
        context = ssl.create_default_context(cafile=self._certificate)
        try:
            with urllib.request.urlopen(request, timeout=15, context=context) as answer:
                text = answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                raise ApiError(error.code, error.read().decode()) from error
        try:
            decoded = json.loads(text)
        except ValueError:
            return {"text": text}
        return decoded if isinstance(decoded, dict) else {"text": text}

    def create(self, body: Obj) -> Obj:
        """Creates an object of one of the kinds above; namespaced ones default to `default`."""
        return self.request("POST", self._collection(body), body=body)

    def get(self, kind: str, name: str, *, namespace: str = "default") -> Obj:
        """One object."""
        return self.request("GET", f"{collection(kind, namespace=namespace)}/{name}")

    def find(self, kind: str, name: str, *, namespace: str = "default") -> Obj | None:
        """One object, or None if there is none of that name."""
        try:
            return self.get(kind, name, namespace=namespace)
        except ApiError as error:
            if error.status == HTTPStatus.NOT_FOUND:
                return None
            raise

    def list(self, kind: str, *, namespace: str = "default", **query: str) -> list[Obj]:
        """All objects of a kind, in `namespace` if it has one; `query` as in fieldSelector=..."""
        path = collection(kind, namespace=namespace)
        items: list[Obj] = self.request("GET", f"{path}?{urllib.parse.urlencode(query)}")["items"]
        return items

    def watch(
        self, kind: str, *, since: str, seconds: int, namespace: str = "default"
    ) -> Iterator[Obj]:
        """The events of a kind after the resourceVersion `since`, for `seconds` seconds.

        Raises:
            ApiError: the server no longer knows that version.
        """
        query = {"watch": "true", "resourceVersion": since, "timeoutSeconds": str(seconds)}
        path = f"{collection(kind, namespace=namespace)}?{urllib.parse.urlencode(query)}"
        request = urllib.request.Request(self._server + path, headers=self.headers)
        context = ssl.create_default_context(cafile=self._certificate)
        with urllib.request.urlopen(request, timeout=seconds + 15, context=context) as stream:
            for line in stream:
                event: Obj = json.loads(line)
                if event["type"] == "ERROR":
                    raise ApiError(int(event["object"].get("code", 0)), line.decode())
                yield event

    def version(self, kind: str, *, namespace: str = "default") -> str:
        """The resourceVersion of the list of a kind: where a watch of all to come begins."""
        path = f"{collection(kind, namespace=namespace)}?limit=1"
        found: str = self.request("GET", path)["metadata"]["resourceVersion"]
        return found

    def patch(
        self, kind: str, name: str, body: Obj, *, namespace: str = "default", subresource: str = ""
    ) -> Obj:
        """Merges `body` into an object (RFC 7386)."""
        path = f"{collection(kind, namespace=namespace)}/{name}"
        path += f"/{subresource}" if subresource else ""
        return self.request("PATCH", path, body=body, content="application/merge-patch+json")

    def delete(
        self, kind: str, name: str, *, namespace: str = "default", grace: int | None = None
    ) -> None:
        """Asks for the deletion of an object; none of that name is as good."""
        options = {} if grace is None else {"gracePeriodSeconds": grace}
        path = f"{collection(kind, namespace=namespace)}/{name}"
        try:
            self.request("DELETE", path, body=options)
        except ApiError as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise

    @staticmethod
    def _collection(body: Obj) -> str:
        path = _COLLECTIONS[body["apiVersion"], body["kind"]]
        return path.format(namespace=body["metadata"].get("namespace", "default"))
