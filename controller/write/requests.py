"""Requests of the controller that leads: none is made any more once it does not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dra.common.resources import Obj, Resource
from dra.kube.client import KubeApi, PatchContent


class NotLeadingError(Exception):
    """Nothing is written any more: another controller may lead."""


class RefusedError(Exception):
    """The API server refuses a write, and will refuse it again; says why, and the remedy."""


class LeaderRequests:
    """Requests by one field manager, as long as its process ``leads``.

    Every method raises KubeError when the server refuses, and NotLeadingError.
    """

    def __init__(self, api: KubeApi, *, manager: str, leads: Callable[[], bool]) -> None:
        self._api = api
        self._manager = manager
        self._leads = leads

    def patch(  # noqa: PLR0913 - the API's own parameters
        self,
        resource: Resource,
        name: str,
        body: Any,
        *,
        namespace: str = "",
        subresource: str = "",
        content: PatchContent = "merge",
    ) -> Obj:
        return self._leading().patch(
            resource,
            name,
            body,
            namespace=namespace,
            subresource=subresource,
            content=content,
            field_manager=self._manager,
        )

    def apply(self, resource: Resource, body: Obj, *, manager: str = "", force: bool = True) -> Obj:
        """Server-side apply, by ``manager`` if one is given."""
        manager = manager or self._manager
        return self._leading().apply(resource, body, field_manager=manager, force=force)

    def create(self, resource: Resource, body: Obj, *, subresource: str) -> Obj:
        """Create a subresource of the object that ``body`` names."""
        manager = self._manager
        return self._leading().create(
            resource, body, subresource=subresource, field_manager=manager
        )

    def delete(self, resource: Resource, name: str, *, namespace: str, uid: str) -> None:
        """Delete an object; another than ``uid`` is a ConflictError."""
        self._leading().delete(resource, name, namespace=namespace, uid=uid)

    def list_all(self, resource: Resource, *, keep: Callable[[Obj], Obj]) -> list[Obj]:
        """All objects of all namespaces, each as ``keep`` returns it."""
        return self._leading().list(resource, keep=keep).items

    def _leading(self) -> KubeApi:
        if not self._leads():
            raise NotLeadingError
        return self._api


def is_still(path: str, value: object) -> Obj:
    """Step of a JSON patch that fails unless a field has this value; None: unless it is missing."""
    return {"op": "test", "path": path, "value": value}
