"""Requests to the Kubernetes API over plain dicts.

Objects are what JSON decodes to, so that fields which this program does not know survive a
read-modify-write.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self, TypedDict, TypeVar, Unpack

import msgspec

from dra.common.resources import RESOURCE_CLAIMS, Obj, Resource
from dra.kube.connection import Connection
from dra.kube.errors import (
    GoneError,
    KubeError,
    NotServedError,
    ObjectNotFoundError,
    TooLargeError,
)
from dra.kube.http import (
    LARGEST_BYTES,
    PAGE_BYTES,
    Exchange,
    HttpClient,
    Keep,
    WatchStream,
    whole,
)
from dra.kube.kubeconfig import SERVICE_ACCOUNT, load_access, pod_access

PatchContent = Literal["merge", "json", "strategic"]

_FIRST_PAGE, _LARGEST_PAGE = 25, 250

_PATCHES: dict[PatchContent, str] = {
    "merge": "application/merge-patch+json",
    "json": "application/json-patch+json",
    "strategic": "application/strategic-merge-patch+json",
}
_APPLY = "application/apply-patch+yaml"
_WATCH_SLACK_SECONDS = 10.0

T = TypeVar("T")

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ObjectList:
    """All objects of a list and the resourceVersion from which a watch continues it.

    Of a part of a list ``is_first`` says that no part was before it, or that none of them counts.
    """

    items: list[Obj]
    resource_version: str
    is_first: bool = True


class Selection(TypedDict, total=False):
    """Selection of the objects of a resource; without any of these fields all are."""

    namespace: str
    label_selector: str
    field_selector: str


class KubeApi:
    """The API server of one cluster. Thread-safe.

    Every method raises the errors of :mod:`dra.kube.errors` and nothing else for what happens
    between here and the server. A call that the server throttles (429 or 503 with Retry-After) is
    repeated while its time budget lasts; other failures are the caller's to retry.
    """

    def __init__(self, http: HttpClient) -> None:
        self._http = http

    @classmethod
    def connect(
        cls,
        kubeconfig: str | None = None,
        *,
        user_agent: str,
        timeout_seconds: float = 15.0,
        observe: Callable[[Exchange], None] = lambda _: None,
        service_account: Path = SERVICE_ACCOUNT,
    ) -> Self:
        """Connect by a kubeconfig file; without one by the pod's service account, else KUBECONFIG.

        Nothing is sent yet. ``timeout_seconds`` is the time limit of one request that is no watch.
        ``observe`` is called with every request that has ended. ``service_account`` is the
        directory of the pod's token.

        Raises:
            KubeConfigError: no usable configuration was found.
        """
        access = pod_access(os.environ, service_account) if kubeconfig is None else None
        access = access or load_access(kubeconfig)
        if access.insecure and access.server.startswith("https:"):
            _log.warning(
                "the API server's certificate is not verified: whoever answers at its address is "
                "believed, and gets the credentials; give certificate-authority in the kubeconfig "
                "instead of insecure-skip-tls-verify",
                extra={"server": access.server},
            )
        http = HttpClient(
            Connection(access),
            user_agent=user_agent,
            timeout_seconds=timeout_seconds,
            observe=observe,
        )
        return cls(http)

    def close(self) -> None:
        """Close idle connections and end waits for a throttling server."""
        self._http.close()

    def get(self, resource: Resource, name: str, *, namespace: str = "") -> Obj:
        """Read one object."""
        return self._http.call("GET", resource.path(namespace, name))

    def get_as(self, kind: type[T], resource: Resource, name: str, *, namespace: str = "") -> T:
        """Read one object as ``kind``, a msgspec type: fields that the type lacks are dropped."""
        return self._http.read(resource.path(namespace, name), kind)

    def get_kept(
        self, resource: Resource, name: str, keep: Keep, *, namespace: str = ""
    ) -> Obj | None:
        """Read one object, of which ``keep`` decodes the part that is returned."""
        return self._http.kept(resource.path(namespace, name), keep)

    def read(self, path: str) -> Obj:
        """Read JSON that is no object of a resource, such as ``/version`` or ``/apis/<group>``."""
        return self._http.call("GET", path)

    def list(
        self, resource: Resource, *, keep: Keep | None = None, **selection: Unpack[Selection]
    ) -> ObjectList:
        """Read all objects of a selection.

        ``keep`` decodes the part of an object that is returned. Without it an object is returned
        whole, with ``apiVersion`` and ``kind``, which servers leave out of lists.
        """
        items: list[Obj] = []
        version = ""
        for part in self.parts(resource, keep=keep, **selection):
            if part.is_first:
                items.clear()
            items += part.items
            version = part.resource_version
        return ObjectList(items, version)

    def parts(
        self, resource: Resource, *, keep: Keep | None = None, **selection: Unpack[Selection]
    ) -> Iterator[ObjectList]:
        """Parts of a list, each read when it is asked for; see :meth:`list`.

        Reading a part ends at ``PAGE_BYTES``, whatever its objects are; then it is asked for again
        with half as many objects, down to one. Parts get more objects as long as they are small.
        """

        def named(raw: msgspec.Raw) -> Obj:
            head = {"apiVersion": resource.api_version, "kind": resource.kind}
            return {**head, **whole(raw)}

        path, query = _selected(resource, selection)
        limit, token, has_restarted = _FIRST_PAGE, "", False
        while True:
            try:
                page = self._http.page(
                    path,
                    query={**query, "limit": str(limit), "continue": token},
                    keep=keep or named,
                    most=PAGE_BYTES if limit > 1 else LARGEST_BYTES,
                )
            except TooLargeError:
                if limit == 1:
                    raise
                limit //= 2
                continue
            except GoneError:
                if not token or has_restarted:
                    raise
                # The snapshot behind the token expired between pages: begin again.
                token, has_restarted = "", True
                continue
            yield ObjectList(page.items, page.resource_version, is_first=not token)
            token = page.token
            if not token:
                return
            if 2 * page.size <= PAGE_BYTES:
                limit = min(_LARGEST_PAGE, limit * 2)

    def version(self, resource: Resource, **selection: Unpack[Selection]) -> str:
        """The resourceVersion that a list would have now."""
        path, query = _selected(resource, selection)
        query |= {"limit": "1"}
        page = self._http.page(path, query=query, keep=lambda _: None, most=LARGEST_BYTES)
        return page.resource_version

    def create(
        self,
        resource: Resource,
        body: Obj,
        *,
        subresource: str = "",
        field_manager: str = "",
        dry_run: bool = False,
    ) -> Obj:
        """Create an object in ``body.metadata.namespace``; returns it as stored.

        With ``dry_run`` it is checked, completed and returned, but not stored. With a
        ``subresource``, such as ``eviction``, ``body`` is posted to that subresource of the object
        that it names.
        """
        name = body["metadata"]["name"] if subresource else ""
        return self._http.call(
            "POST",
            resource.path(_namespace(body), name, subresource),
            query={"fieldManager": field_manager, "dryRun": "All" if dry_run else ""},
            body=body,
        )

    def replace(
        self, resource: Resource, body: Obj, *, subresource: str = "", field_manager: str = ""
    ) -> Obj:
        """Write a whole object; its resourceVersion makes a stale write a ConflictError."""
        return self._http.call(
            "PUT",
            resource.path(_namespace(body), body["metadata"]["name"], subresource),
            query={"fieldManager": field_manager},
            body=body,
        )

    def replace_status(self, resource: Resource, body: Obj, *, field_manager: str) -> Obj:
        """Write an object's ``status`` and nothing else of it; returns its new metadata.

        A stale write is a ConflictError, as with :meth:`replace`. The rest of a large object is
        neither sent nor read again.
        """
        metadata = body["metadata"]
        named = {
            k: metadata[k] for k in ("name", "namespace", "uid", "resourceVersion") if k in metadata
        }
        answer = self._http.call(
            "PUT",
            resource.path(_namespace(body), metadata["name"], "status"),
            query={"fieldManager": field_manager},
            body={
                "apiVersion": resource.api_version,
                "kind": resource.kind,
                "metadata": named,
                "status": body["status"],
            },
            metadata_only=True,
        )
        return dict(answer["metadata"])

    def patch(  # noqa: PLR0913 - the API's own parameters
        self,
        resource: Resource,
        name: str,
        body: Any,
        *,
        namespace: str = "",
        subresource: str = "",
        content: PatchContent = "merge",
        field_manager: str = "",
    ) -> Obj:
        """Change an object: ``merge`` and ``strategic`` take a dict, ``json`` a list of operations.

        A ``metadata.resourceVersion`` in the patch makes a stale write a ConflictError.
        """
        return self._http.call(
            "PATCH",
            resource.path(namespace, name, subresource),
            query={"fieldManager": field_manager},
            body=body,
            content_type=_PATCHES[content],
        )

    def apply(  # noqa: PLR0913 - the API's own parameters, and what to read of the answer
        self,
        resource: Resource,
        body: Obj,
        *,
        field_manager: str,
        subresource: str = "",
        force: bool = True,
        metadata_only: bool = False,
    ) -> Obj:
        """Server-side apply; creates the object when it is missing.

        ``force`` takes over fields of other managers. With ``metadata_only`` only the metadata of
        the object is returned.
        """
        return self._http.call(
            "PATCH",
            resource.path(_namespace(body), body["metadata"]["name"], subresource),
            query={"fieldManager": field_manager, "force": "true" if force else "false"},
            body={"apiVersion": resource.api_version, "kind": resource.kind} | body,
            content_type=_APPLY,
            metadata_only=metadata_only,
        )

    def delete(
        self,
        resource: Resource,
        name: str,
        *,
        namespace: str = "",
        uid: str = "",
        grace_seconds: int | None = None,
    ) -> None:
        """Delete one object; raises ConflictError if ``uid`` is given and it has another."""
        options: Obj = {"apiVersion": "v1", "kind": "DeleteOptions"}
        if uid:
            options["preconditions"] = {"uid": uid}
        if grace_seconds is not None:
            options["gracePeriodSeconds"] = grace_seconds
        self._http.call("DELETE", resource.path(namespace, name), body=options)

    def watch(
        self,
        resource: Resource,
        *,
        resource_version: str,
        timeout_seconds: float,
        keep: Keep = whole,
        **selection: Unpack[Selection],
    ) -> WatchStream:
        """Follow changes after ``resource_version``, with bookmarks, until the server ends it.

        ``keep`` decodes the part of an object that events have. The server is asked to end the
        watch after ``timeout_seconds``; silence for 10 s longer than that is a broken connection.
        Close the stream to end it earlier.
        """
        path, query = _selected(resource, selection)
        query |= {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": resource_version,
            "timeoutSeconds": str(max(1, round(timeout_seconds))),
        }
        silence = timeout_seconds + _WATCH_SLACK_SECONDS
        return self._http.stream(
            path, query=query, silence_seconds=silence, keep=keep, what=str(resource)
        )


def _selected(resource: Resource, selection: Selection) -> tuple[str, dict[str, str]]:
    """Path and query of a list or watch."""
    query = {
        "labelSelector": selection.get("label_selector", ""),
        "fieldSelector": selection.get("field_selector", ""),
    }
    return resource.path(selection.get("namespace", "")), query


def _namespace(body: Obj) -> str:
    return str(body["metadata"].get("namespace") or "")


def check_served(api: KubeApi) -> None:
    """Check by the server's discovery, which every account may read, for the GA API of claims.

    If the server cannot be asked now, only a warning is logged: later requests will show.

    Raises:
        NotServedError: the server answered, and serves no ``resource.k8s.io/v1``.
    """
    group, wanted = RESOURCE_CLAIMS.group, RESOURCE_CLAIMS.version
    try:
        served = [each["version"] for each in api.read(f"/apis/{group}")["versions"]]
    except ObjectNotFoundError:
        served = []
    except KubeError as error:
        _log.warning("cannot tell yet whether the server serves %s: %s", group, error)
        return
    if wanted not in served:
        only = f"only {', '.join(served)}" if served else "no version"
        raise NotServedError(
            f"the API server{_named(api)} serves {only} of {group}, and the driver needs "
            f"{group}/{wanted}: upgrade Kubernetes to 1.34 or newer, where it is on by default, or "
            f"take it out of what --runtime-config turns off"
        )


def first_served(api: KubeApi, resources: Sequence[Resource]) -> Resource | None:
    """The first of ``resources`` that the server serves; None where it serves none of them.

    If the server does not answer, the first is returned: a list of it shows whether it is served.
    """
    for resource in resources:
        try:
            found = api.read(f"/apis/{resource.group}/{resource.version}")["resources"]
        except ObjectNotFoundError:
            continue
        except KubeError as error:
            _log.warning("cannot tell whether the server serves %s: %s", resource, error)
            return resources[0]
        if any(each["name"] == resource.plural for each in found):
            return resource
    return None


def _named(api: KubeApi) -> str:
    with contextlib.suppress(KubeError):
        return f" ({api.read('/version').get('gitVersion', 'unknown version')})"
    return ""
