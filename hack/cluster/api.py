"""A small JSON client, independent of the driver's transport."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import urllib3

from dra.common import resources
from dra.common.resources import Obj, Resource

_KINDS = {
    each.kind: each
    for each in (
        *(each for each in vars(resources).values() if isinstance(each, Resource)),
        Resource("", "v1", "configmaps", "ConfigMap", namespaced=True),
        Resource("apps", "v1", "replicasets", "ReplicaSet", namespaced=True),
        Resource("scheduling.k8s.io", "v1alpha2", "podgroups", "PodGroup", namespaced=True),
    )
}
_SECONDS = 15.0


class ApiError(Exception):
    """An answer of 400 or above."""

    def __init__(self, status: int, body: str) -> None:
        super().__init__(f"{status}: {body}")
        self.status = status


def collection(kind: str, *, namespace: str = "default") -> str:
    """The path of all objects of a kind, in `namespace` if it has one."""
    resource = _KINDS[kind]
    return resource.path(namespace if resource.namespaced else "")


class Api:
    """Requests to one API server under one token."""

    def __init__(self, server: str, token: str, *, certificate: Path) -> None:
        self._server = server
        self.headers = {"Authorization": f"Bearer {token}", "User-Agent": "hack-cluster"}
        self._http = urllib3.PoolManager(ca_certs=str(certificate), retries=False)

    def request(
        self, method: str, path: str, *, body: Any = None, content: str = "application/json"
    ) -> Obj:
        """The decoded answer, `{"text": ...}` if it is no JSON object.

        Raises:
            ApiError: for every refusal.
            OSError: the server does not answer.
        """
        sent: dict[str, Any] = {"headers": self.headers | {"Content-Type": content}}
        if body is not None:
            whole = isinstance(body, str)  # what is encoded already
            sent["body"] = body if whole else json.dumps(body, separators=(",", ":"))
        text = self._answer(method, path, timeout=_SECONDS, **sent).data.decode()
        try:
            decoded = json.loads(text)
        except ValueError:
            return {"text": text}
        return decoded if isinstance(decoded, dict) else {"text": text}

    def _answer(self, method: str, path: str, **sent: Any) -> urllib3.BaseHTTPResponse:
        try:
            answer = self._http.request(method, self._server + path, **sent)
        except urllib3.exceptions.HTTPError as error:
            raise OSError(str(error)) from error
        if answer.status >= HTTPStatus.BAD_REQUEST:
            raise ApiError(answer.status, answer.data.decode())
        return answer

    def create(self, body: Obj) -> Obj:
        """Creates an object of one of the kinds above; namespaced ones default to `default`."""
        namespace = body["metadata"].get("namespace", "default")
        return self.request("POST", collection(body["kind"], namespace=namespace), body=body)

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
        items: list[Obj] = self.request("GET", f"{path}?{urlencode(query)}")["items"]
        return items

    def watch(
        self, kind: str, *, since: str, seconds: int, namespace: str = "default"
    ) -> Iterator[Obj]:
        """The events of a kind after the resourceVersion `since`, for `seconds` seconds.

        Raises:
            ApiError: the server no longer knows that version.
        """
        query = {"watch": "true", "resourceVersion": since, "timeoutSeconds": str(seconds)}
        path = f"{collection(kind, namespace=namespace)}?{urlencode(query)}"
        sent = {"headers": self.headers, "timeout": seconds + _SECONDS, "preload_content": False}
        with self._answer("GET", path, **sent) as stream:
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
