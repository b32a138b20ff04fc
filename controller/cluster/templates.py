"""Templates made for pods' limits, the pods that name them, and namespaces that opted in."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from controller.cluster.records import Effects
from dra.common.cache import Index
from dra.common.resources import Obj, ObjectKey, at
from dra.limits.rewriting import LABEL_VALUE, is_template_name, opt_in_label
from dra.pods.pods import Pod


class KnownTemplates:
    """Templates that exist, the pods that name them, and namespaces that have opted in.

    No template is known if the controller may not list them.
    """

    def __init__(self, driver: str, effects: Effects) -> None:
        self._label = opt_in_label(driver)
        self._effects = effects
        self._names: dict[str, set[str]] = {}
        self._users: dict[str, Index[str, ObjectKey]] = {}
        self.present: dict[ObjectKey, str] = {}
        """UID of each template that exists."""
        self.namespaces: set[str] = set()

    def set(self, obj: Obj) -> None:
        """Take a template that was added; it is ignored if this driver gives no such name."""
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
        """Names of the templates in a namespace; the result is not to be kept over a change."""
        return self._names.get(namespace, ())

    def set_namespace(self, name: str, labels: Mapping[str, str]) -> None:
        """Take the labels of a Namespace; they are empty for one that is gone."""
        if labels.get(self._label) != LABEL_VALUE:
            self.namespaces.discard(name)
        elif name not in self.namespaces:
            self.namespaces.add(name)
            self._effects.opted_in.add(name)

    def change(self, before: Pod | None, pod: Pod | None) -> None:
        """Take a pod that is new (no ``before``), changed, or gone (no ``pod``).

        A pod counts as a user of the templates that it names until it has ended.
        """
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
        """Names of the templates that are named by pods of a namespace that have not ended."""
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
        """Missing templates from which claims of a pod are still to be made."""
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
    """True if a pod surely names the same templates: equal specs are one object in memory."""
    old, new = at(before.obj, "spec", "resourceClaims"), at(pod.obj, "spec", "resourceClaims")
    return old is new and before.live == pod.live and bool(before.claims) == bool(pod.claims)


def _named_by(pod: Pod | None) -> frozenset[str]:
    """Names of templates of limits in a pod's spec; none if the pod is gone or has ended."""
    if pod is None or not pod.live or not pod.claims:
        return frozenset()
    entries = at(pod.obj, "spec", "resourceClaims")
    names = (entry.get("resourceClaimTemplateName") or "" for entry in entries)
    return frozenset(filter(is_template_name, names))
