"""Templates that limits became, the pods that name them, and the namespaces that opted in."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from controller.cluster.records import Effects
from dra.common.cache import Index
from dra.common.resources import Obj, ObjectKey, at
from dra.limits.rewriting import LABEL_VALUE, is_template_name, opt_in_label
from dra.pods.pods import Pod


class KnownTemplates:
    """Templates that are there, and namespaces that have opted in.

    Without the right to list templates none is known.
    """

    def __init__(self, driver: str, effects: Effects) -> None:
        self._label = opt_in_label(driver)
        self._effects = effects
        self._names: dict[str, set[str]] = {}
        self._users: dict[str, Index[str, ObjectKey]] = {}
        self.present: dict[ObjectKey, str] = {}
        """UID of each template that is there."""
        self.namespaces: set[str] = set()

    def set(self, obj: Obj) -> None:
        """A template was added; one that is marked as ours and named otherwise is none of ours."""
        namespace, name = obj["metadata"]["namespace"], obj["metadata"]["name"]
        if is_template_name(name):
            self.present[namespace, name] = obj["metadata"].get("uid", "")
            self._names.setdefault(namespace, set()).add(name)

    def remove(self, key: ObjectKey) -> None:
        if self.present.pop(key, None) is None:
            return
        self._names[key[0]].discard(key[1])
        if not self._names[key[0]]:
            del self._names[key[0]]
        self._effects.templates.add(key)

    def names(self, namespace: str) -> Collection[str]:
        """Names of those that are there; not to be kept over a change."""
        return self._names.get(namespace, ())

    def set_namespace(self, name: str, labels: Mapping[str, str]) -> None:
        """A Namespace has these labels; one that is gone has none."""
        if labels.get(self._label) != LABEL_VALUE:
            self.namespaces.discard(name)
        elif name not in self.namespaces:
            self.namespaces.add(name)
            self._effects.opted_in.add(name)

    def change(self, before: Pod | None, pod: Pod | None) -> None:
        """A pod was added or changed, or is gone: it names templates as long as it lives."""
        if before is not None and pod is not None and _is_as_before(before, pod):
            return
        old, new = _named_by(before), _named_by(pod)
        if before is not None and old != new:
            self._leave(before.key, old - new)
        if pod is not None and new:
            users = self._users.setdefault(pod.key[0], Index())
            for name in new - old:
                users.add(name, pod.key)

    def _leave(self, pod: ObjectKey, names: Collection[str]) -> None:
        namespace = pod[0]
        users = self._users[namespace]
        for name in names:
            users.discard(name, pod)
            if not users.of(name):
                self._effects.templates.add((namespace, name))
        if not len(users):
            del self._users[namespace]

    def users(self, key: ObjectKey) -> Collection[ObjectKey]:
        """Pods that name a template and have not ended; not to be kept over a change."""
        users = self._users.get(key[0])
        return users.of(key[1]) if users is not None else ()

    def named_in(self, namespace: str) -> Iterator[str]:
        """Names of the templates that pods of a namespace name which have not ended."""
        users = self._users.get(namespace)
        yield from (name for name, _ in users.items()) if users is not None else ()

    def lacks(self, key: ObjectKey) -> bool:
        """True if the template is missing in a namespace that has opted in."""
        return key[0] in self.namespaces and key not in self.present

    def awaits(self, pod: Pod, name: str) -> bool:
        """True if a claim of a pod is still to be made from the template ``name``."""
        return pod.pending and any(
            entry.get("resourceClaimTemplateName") == name
            and pod.claims.get(entry["name"], "") is None
            for entry in at(pod.obj, "spec", "resourceClaims")
        )

    def awaited(self, pod: Pod) -> Iterator[ObjectKey]:
        """Templates that a pod waits for, as its claims are made from them."""
        namespace = pod.key[0]
        if namespace not in self.namespaces or None not in pod.claims.values() or not pod.pending:
            return
        for entry in at(pod.obj, "spec", "resourceClaims"):
            name = entry.get("resourceClaimTemplateName") or ""
            if pod.claims.get(entry["name"], "") is None and is_template_name(name):
                key = (namespace, name)
                if self.lacks(key):
                    yield key


def _is_as_before(before: Pod, pod: Pod) -> bool:
    """True if a pod surely names the same: what the mirror has seen before is kept once."""
    old, new = at(before.obj, "spec", "resourceClaims"), at(pod.obj, "spec", "resourceClaims")
    return old is new and before.live == pod.live and bool(before.claims) == bool(pod.claims)


def _named_by(pod: Pod | None) -> frozenset[str]:
    """Names of such templates in a pod's spec; none of a pod that is not there or has ended."""
    if pod is None or not pod.live or not pod.claims:
        return frozenset()
    entries = at(pod.obj, "spec", "resourceClaims")
    names = (entry.get("resourceClaimTemplateName") or "" for entry in entries)
    return frozenset(filter(is_template_name, names))
