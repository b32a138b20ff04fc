"""Requests of the controller that leads: none is made any more once it does not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dra.common.resources import Obj, ObjectKey, Resource
from dra.kube.client import KubeApi, PatchContent
from dra.kube.errors import ConflictError, InvalidError


class NotLeadingError(Exception):
    """Nothing is written any more: another controller may lead."""


class RefusedError(Exception):
    """The API server refuses a write, and will refuse it again; says why, and the remedy."""


@dataclass(frozen=True, slots=True)
class LeaderRequests:
    """Requests by one field manager, as long as its process ``leads``.

    All raise KubeError when the server refuses, and NotLeadingError.
    """

    kube: KubeApi
    manager: str
    leads: Callable[[], bool]

    @property
    def api(self) -> KubeApi:
        """For one request."""
        if not self.leads():
            raise NotLeadingError
        return self.kube

    def patch(
        self,
        resource: Resource,
        key: ObjectKey,
        body: Any,
        *,
        subresource: str = "",
        content: PatchContent = "merge",
    ) -> Obj:
        """Change the object of that namespace and name."""
        return self.api.patch(
            resource,
            key[1],
            body,
            namespace=key[0],
            subresource=subresource,
            content=content,
            field_manager=self.manager,
        )

    def take_steps(
        self, resource: Resource, key: ObjectKey, steps: list[Obj], *, subresource: str = ""
    ) -> Obj:
        """Change an object by a JSON patch.

        Raises:
            ConflictError: something is not as a step tests it.
        """
        try:
            return self.patch(resource, key, steps, subresource=subresource, content="json")
        except InvalidError as error:  # what a JSON patch is answered whose test fails
            name = "/".join(filter(None, key))
            raise ConflictError(f"{resource.kind} {name} has changed: {error.message}") from error


def is_still(path: str, value: object) -> Obj:
    """Step of a JSON patch that fails unless a field has this value; None: unless it is missing."""
    return {"op": "test", "path": path, "value": value}
