"""Patches: their content types, and the request for them as a protocol."""

from __future__ import annotations

from typing import Any, Literal, Protocol

from dra.common.resources import Obj, Resource

PatchContent = Literal["merge", "json", "strategic"]

PATCH_TYPES: dict[PatchContent, str] = {
    "merge": "application/merge-patch+json",
    "json": "application/json-patch+json",
    "strategic": "application/strategic-merge-patch+json",
}
"""Content types by name."""


class PatchApi(Protocol):
    """An API server that takes patches; :class:`dra.kube.client.transport.KubeApi` is one."""

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
        """Change one object and return it.

        ``body`` is a dict for ``merge`` and ``strategic``, a list of operations for ``json``.
        """
