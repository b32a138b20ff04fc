"""Templates that limits became and that no living pod names: how many there may be, which go when.

To remove one does no harm: a pod that names it in the meantime waits for it, and it is made again.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from controller.cluster.cluster import Cluster
from controller.cluster.effects import Effects
from dra.claims.classes import offered_profiles
from dra.common.resources import ObjectKey
from dra.limits.rewriting import is_template_name, template_name

LOOK_SECONDS = 600.0
KEEP_SECONDS = 3600.0
AT_ONCE = 20
"""Templates that one look gives up; the others are for the next."""

MOST = 64
"""Templates of one namespace besides those of the profiles that nodes have."""

KEEP_WHERE_FULL_SECONDS = 60.0
"""Time for which one stays where another is waited for: so many writes a minute a tenant causes."""


class UnusedTemplates:
    """Looks now and then for templates to give up. Those of profiles that nodes have stay."""

    def __init__(self, cluster: Cluster, now: Callable[[], float]) -> None:
        self._cluster = cluster
        self._now = now
        self._since: dict[ObjectKey, float] = {}
        self._given_up: list[ObjectKey] = []
        self._next_look = now() + LOOK_SECONDS
        self.lasting: frozenset[str] = frozenset()
        """Names of those that stay."""

    def note(self, effects: Effects) -> None:
        """Profiles may have changed, and pods that named templates may be gone."""
        if effects.classes:
            cluster = self._cluster
            profiles = offered_profiles(
                cluster.fleet.profiles_by_node(), cluster.class_objects.keys()
            )
            self.lasting = frozenset(filter(is_template_name, map(template_name, profiles)))
        for key in effects.templates:
            self._since.pop(key, None)
            if self._is_unused(key):
                self._since[key] = self._now()

    @property
    def due(self) -> float | None:
        """Monotonic time of the next look, or of what is given up; None without templates."""
        if self._given_up:
            return self._now()
        return self._next_look if self._cluster.templates.present else None

    def pop(self) -> ObjectKey | None:
        """The next template to remove; None where none is due."""
        now = self._now()
        if not self._given_up and now >= self._next_look:
            self._next_look = now + LOOK_SECONDS
            self._look(now)
        while self._given_up:
            key = self._given_up.pop()
            if self._is_unused(key):
                return key
        return None

    def is_full(self, namespace: str) -> bool:
        """True if a namespace has as many as it may, besides those that stay."""
        names = self._cluster.templates.names(namespace)
        return sum(name not in self.lasting for name in names) >= MOST

    def oldest(self, namespace: str) -> tuple[ObjectKey | None, float]:
        """The template that goes first where a namespace is full, and the time when it may.

        None where pods name all of them.
        """
        now = self._now()
        keys = ((namespace, name) for name in self._cluster.templates.names(namespace))
        found = [(self._since.setdefault(k, now), k) for k in keys if self._is_unused(k)]
        if not found:
            return None, inf
        since, key = min(found)
        return key, since + KEEP_WHERE_FULL_SECONDS

    def keep(self, key: ObjectKey) -> None:
        """A template cannot be removed now."""
        self._since[key] = self._now()

    def _look(self, now: float) -> None:
        unused = filter(self._is_unused, self._cluster.templates.present)
        self._since = {key: self._since.get(key, now) for key in unused}
        old = [key for key, since in self._since.items() if now - since >= KEEP_SECONDS]
        self._given_up = old[:AT_ONCE]

    def _is_unused(self, key: ObjectKey) -> bool:
        known = self._cluster.templates
        return key in known.present and key[1] not in self.lasting and not known.users(key)
