"""Mirrors of what the page shows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from cli.facts import COMPONENT, LIVE
from cli.output import CliError, Exit
from cli.page.content import Content, said
from dra.claims.trimming import trim_claim_spec
from dra.common.resources import EVENTS, MIG_NODES, PODS, RESOURCE_CLAIMS, Obj, Resource, at, picked
from dra.gangs.membership import read_annotations
from dra.kube.client import KubeApi
from dra.kube.errors import ForbiddenError, ObjectNotFoundError
from dra.kube.reflector import Reflector
from dra.pods.trimming import trim_pod

_SOURCES = ("{driver}", "{driver}/controller")
"""Components in whose name the plugin and the controller write events."""
_STATUS = ("extendedResourceClaimStatus",)
_EVENT = (
    *("metadata", "involvedObject", "reason", "message", "type"),
    *("series", "lastTimestamp", "eventTime"),
)
_CONDITION = 2000
"""Characters that are kept of a condition, which an explanation quotes."""
_METADATA = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")


class Mirrors:
    """Mirrors that feed ``content``: of all namespaces, or of one where that is forbidden.

    The API server is asked at once which of these is allowed.
    """

    def __init__(self, api: KubeApi, content: Content, *, driver: str, namespace: str = "") -> None:
        kinds: list[tuple[Resource, str, Callable[[Obj], Obj]]] = [
            (MIG_NODES, "", lambda obj: obj),
            (RESOURCE_CLAIMS, "", _claim_of(driver)),
            (PODS, LIVE, _pod_of(driver)),
            *((EVENTS, f"source={s.format(driver=driver)}", _event) for s in _SOURCES),
        ]
        self._api = api
        self._scopes: dict[Resource, str] = {}
        self.mirrors: list[Reflector] = []
        for resource, fields, keep in kinds:
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
                    keep=keep,
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
        return self._api.list(resource, namespace=namespace, **selection).items

    def troubles(self) -> dict[str, list[str]]:
        """``loading``: kinds not listed yet; ``stale``: kinds of which nothing new comes."""
        loading = [str(m.resource) for m in self.mirrors if not m.synced and not m.denied]
        stale = [str(m.resource) for m in self.mirrors if m.synced and m.failures > 1]
        return {"loading": [*dict.fromkeys(loading)], "stale": [*dict.fromkeys(stale)]}


def _deliver(content: Content, resource: Resource) -> Callable[[Any], None]:
    return lambda change: content.take(resource, change)


def _claim_of(driver: str) -> Callable[[Obj], Obj]:
    def keep(obj: Obj) -> Obj:
        metadata = {k: v for k, v in obj["metadata"].items() if k != "managedFields"}
        spec = trim_claim_spec(at(obj, "spec", default={}), driver)
        return {**obj, "metadata": metadata, "spec": spec}

    return keep


def _pod_of(driver: str) -> Callable[[Obj], Obj]:
    """The part of a pod that is shown, or that an explanation reads."""
    annotations = read_annotations(driver)

    def keep(obj: Obj) -> Obj:
        slim = trim_pod(obj, annotations)
        slim["status"] |= picked(at(obj, "status", default={}), _STATUS)
        slim["status"]["conditions"] = [*map(_condition, at(obj, "status", "conditions"))]
        if COMPONENT in at(obj, "metadata", "labels", default={}):
            for kept, whole in zip(
                slim["spec"]["containers"], obj["spec"]["containers"], strict=False
            ):
                kept["image"] = said(whole.get("image"))
        return slim

    return keep


def _condition(condition: Mapping[str, Any]) -> Obj:
    return {key: said(text, _CONDITION) for key, text in condition.items()}


def _event(obj: Obj) -> Obj:
    found = picked(obj, _EVENT)
    found["metadata"] = picked(obj["metadata"], _METADATA)
    about = picked(at(obj, "involvedObject", default={}), ("kind", "name", "namespace", "uid"))
    found["involvedObject"] = {key: said(text) for key, text in about.items()}
    return found | {"message": said(obj.get("message")), "reason": said(obj.get("reason"))}
