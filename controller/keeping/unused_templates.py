"""Templates that limits became and that no pod has named for an hour.

To remove one does no harm: a pod that names it in the meantime waits for it, and it is made again.
"""

from __future__ import annotations

from collections.abc import Callable

from controller.cluster.cluster import Cluster
from dra.common.resources import ObjectKey, at
from dra.limits.templates import is_lasting

LOOK_SECONDS = 600.0
KEEP_SECONDS = 3600.0
AT_ONCE = 20
"""Templates that one look gives up; the others are for the next."""


class UnusedTemplates:
    """Looks now and then for templates to give up. Those of profiles stay."""

    def __init__(self, cluster: Cluster, now: Callable[[], float]) -> None:
        self._cluster = cluster
        self._now = now
        self._since: dict[ObjectKey, float] = {}
        self._given_up: list[ObjectKey] = []
        self._next_look = now() + LOOK_SECONDS

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
            if key in self._cluster.templates.present and key not in self._used():
                return key
        return None

    def _look(self, now: float) -> None:
        used = self._used()
        unused = [
            key
            for key in self._cluster.templates.present
            if key not in used and not is_lasting(key[1])
        ]
        self._since = {key: self._since.get(key, now) for key in unused}
        old = [key for key, since in self._since.items() if now - since >= KEEP_SECONDS]
        self._given_up = old[:AT_ONCE]

    def _used(self) -> set[ObjectKey]:
        """Templates that any pod names, in whatever state it is."""
        return {
            (key[0], entry["resourceClaimTemplateName"])
            for key, pod in self._cluster.pods.items()
            for entry in at(pod.obj, "spec", "resourceClaims")
            if entry.get("resourceClaimTemplateName")
        }
