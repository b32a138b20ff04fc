"""Templates that limits became, and the namespaces that opted in to that."""

from __future__ import annotations

from collections.abc import Iterator

from controller.cluster.effects import Effects
from dra.common.resources import Obj, ObjectKey, at
from dra.limits.templates import LABEL_VALUE, is_template_name, opt_in_label
from dra.pods.pods import Pod


class KnownTemplates:
    """Templates that are there, and namespaces that have opted in.

    Without the right to list templates none is known.
    """

    def __init__(self, driver: str, effects: Effects) -> None:
        self._label = opt_in_label(driver)
        self._effects = effects
        self.present: dict[ObjectKey, str] = {}
        """UID of each template that is there."""
        self.namespaces: set[str] = set()

    def set(self, obj: Obj) -> None:
        """A template was added."""
        metadata = obj["metadata"]
        self.present[metadata["namespace"], metadata["name"]] = metadata.get("uid", "")

    def remove(self, key: ObjectKey) -> None:
        """A template is gone."""
        self.present.pop(key, None)
        self._effects.templates = True

    def set_namespace(self, obj: Obj) -> None:
        """A Namespace was added or changed."""
        name = obj["metadata"]["name"]
        labels = at(obj, "metadata", "labels", default={})
        if labels.get(self._label) != LABEL_VALUE:
            self.namespaces.discard(name)
        elif name not in self.namespaces:
            self.namespaces.add(name)
            self._effects.templates = True

    def remove_namespace(self, name: str) -> None:
        """A Namespace is gone."""
        self.namespaces.discard(name)

    def lacks(self, key: ObjectKey) -> bool:
        """True if the template is missing in a namespace that has opted in."""
        return key[0] in self.namespaces and key not in self.present

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
