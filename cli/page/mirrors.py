"""Mirrors of what the page shows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cli.facts import LIVE
from cli.kept import kept
from cli.output import CliError, Exit
from cli.page.content import Content
from dra.common.resources import EVENTS, MIG_NODES, PODS, RESOURCE_CLAIMS, Obj, Resource
from dra.kube.client import KubeApi
from dra.kube.errors import ForbiddenError, ObjectNotFoundError
from dra.kube.http import whole
from dra.kube.reflector import Reflector

_SOURCES = ("{driver}", "{driver}/controller")
"""Components in whose name the plugin and the controller write events."""


class Mirrors:
    """Mirrors that feed ``content``: of all namespaces, or of one where that is forbidden.

    The API server is asked at once which of these is allowed.
    """

    def __init__(self, api: KubeApi, content: Content, *, driver: str, namespace: str = "") -> None:
        keep = self._keep = kept(driver)
        kinds = [
            *((MIG_NODES, ""), (RESOURCE_CLAIMS, ""), (PODS, LIVE)),
            *((EVENTS, f"source={s.format(driver=driver)}") for s in _SOURCES),
        ]
        self._api = api
        self._scopes: dict[Resource, str] = {}
        self.mirrors: list[Reflector] = []
        for resource, fields in kinds:
            scope = ""
            try:
                api.version(resource, field_selector=fields)
            except ForbiddenError:
                scope = namespace if resource.namespaced else ""
            except ObjectNotFoundError as error:
                text = f"the cluster does not know {resource}: is the driver installed?"
                raise CliError(Exit.NOT_FOUND, f"{text} (kubectl mig doctor)") from error
            self._scopes[resource] = scope
            self.mirrors.append(
                Reflector(
                    api,
                    resource,
                    on_event=_deliver(content, resource),
                    keep=keep.get(resource, whole),
                    namespace=scope,
                    field_selector=fields,
                )
            )

    def start(self) -> None:
        """Start to mirror."""
        for mirror in self.mirrors:
            mirror.start()

    def stop(self) -> None:
        """End all mirrors."""
        for mirror in self.mirrors:
            mirror.stop()

    def hidden(self) -> list[str]:
        """Kinds of which not all objects may be listed."""
        hidden = (m.resource for m in self.mirrors if m.denied or self._scopes[m.resource])
        return [*dict.fromkeys(map(str, hidden))]

    def listed(self, resource: Resource, *, namespace: str = "", **selection: Any) -> list[Obj]:
        """All objects of a kind; the server is not asked for those that are mirrored.

        Events are always asked for, as not all are mirrored. Raises ForbiddenError.
        """
        scope = self._scopes.get(resource)
        if resource != EVENTS and scope in ("", namespace):
            (mirror,) = (m for m in self.mirrors if m.resource == resource)
            if mirror.synced and not mirror.denied:
                found = mirror.store.list()
                return [o for o in found if namespace in ("", o["metadata"].get("namespace", ""))]
        keep = self._keep.get(resource)
        return self._api.list(resource, namespace=namespace, keep=keep, **selection).items

    def troubles(self) -> dict[str, list[str]]:
        """``loading``: kinds not listed yet; ``stale``: kinds of which nothing new comes."""
        loading = [str(m.resource) for m in self.mirrors if not m.synced and not m.denied]
        stale = [str(m.resource) for m in self.mirrors if m.synced and m.failures > 1]
        return {"loading": [*dict.fromkeys(loading)], "stale": [*dict.fromkeys(stale)]}


def _deliver(content: Content, resource: Resource) -> Callable[[Any], None]:
    return lambda change: content.take(resource, change)
