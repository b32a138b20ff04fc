"""Synchronisation of the templates that limits become, in namespaces that opted in.

There is one for each profile of the nodes, and one for whatever else a pod waits for. None is ever
wrong, as its name says what it asks for; those that nobody has named for long are removed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from controller.cluster.cluster import Cluster
from controller.cluster.effects import Effects
from controller.keeping.unused_templates import UnusedTemplates
from controller.writing.object_writer import ObjectWriter
from dra.common.resources import ObjectKey
from dra.kube.errors import InvalidError, KubeError
from dra.kube.timing import Backoff
from dra.limits.templates import template, template_name

_log = logging.getLogger(__name__)

_FIRST_PAUSE = 1.0
_LONGEST_PAUSE = 60.0


class TemplateSync:
    """Writes one template at a time, those that pods wait for first."""

    def __init__(self, cluster: Cluster, writer: ObjectWriter, now: Callable[[], float]) -> None:
        self._cluster = cluster
        self._writer = writer
        self._now = now
        self._backoff = Backoff(first=_FIRST_PAUSE, limit=_LONGEST_PAUSE, jitter=0)
        self._awaited: dict[ObjectKey, None] = {}
        self._others: dict[ObjectKey, None] = {}
        self._not_before = 0.0
        self._unused = UnusedTemplates(cluster, now)

    @property
    def due(self) -> float | None:
        """Monotonic time of the next write; None where there is none."""
        if self._awaited:
            return self._now()
        times = (self._not_before if self._others else None, self._unused.due)
        return min((time for time in times if time is not None), default=None)

    def note(self, effects: Effects) -> None:
        """Pods, namespaces, templates or profiles may have changed."""
        known = self._cluster.templates
        if not known.namespaces:
            return
        for key in effects.pods:
            if (pod := self._cluster.pods.get(key)) is not None:
                self._awaited.update(dict.fromkeys(known.awaited(pod)))
        if effects.templates or effects.classes:
            self._look_at_all()

    def write_if_due(self) -> bool:
        """Write or remove one template; False when none is due."""
        queue = self._awaited or (self._others if self._not_before <= self._now() else {})
        if not queue:
            return self._remove_unused()
        key = next(iter(queue))
        del queue[key]
        if self._cluster.templates.lacks(key):
            self._write(key)
        return True

    def _remove_unused(self) -> bool:
        key = self._unused.pop()
        if key is None:
            return False
        fields = {"template": f"{key[0]}/{key[1]}"}
        try:
            self._writer.remove_template(key, uid=self._cluster.templates.present[key])
        except KubeError as error:
            _log.warning("ResourceClaimTemplate not removed", extra={**fields, "error": str(error)})
        else:
            self._cluster.templates.remove(key)
            _log.info("ResourceClaimTemplate removed: no pod named it for long", extra=fields)
        return True

    def _look_at_all(self) -> None:
        """Note templates of all profiles for every namespace, and those that any pod waits for."""
        known = self._cluster.templates
        names = [template_name(profile) for profile in sorted(self._cluster.fleet.profiles())]
        keys = ((namespace, name) for namespace in sorted(known.namespaces) for name in names)
        self._others = dict.fromkeys(filter(known.lacks, keys))
        self._awaited.update(dict.fromkeys(self._awaited_by(self._cluster.pods)))

    def _awaited_by(self, pods: Iterable[ObjectKey]) -> Iterable[ObjectKey]:
        for key in pods:
            yield from self._cluster.templates.awaited(self._cluster.pods[key])

    def _write(self, key: ObjectKey) -> None:
        namespace, name = key
        fields = {"template": f"{namespace}/{name}"}
        try:
            made = self._writer.apply_template(
                template(name, namespace, driver=self._cluster.driver)
            )
        except InvalidError as error:
            _log.warning(
                "a ResourceClaimTemplate of somebody else has the name of one of ours: pods get "
                "what that asks for",
                extra={**fields, "error": str(error)},
            )
        except KubeError as error:
            # A namespace that ends refuses all; it leaves the set once it is gone.
            self._others[key] = None
            pause = self._backoff.next_delay()
            self._not_before = self._now() + pause
            _log.warning(
                "ResourceClaimTemplate not written; trying again",
                extra={**fields, "pause": pause, "error": str(error)},
            )
        else:
            self._backoff.reset()
            self._cluster.templates.set(made)
            _log.info("ResourceClaimTemplate written", extra=fields)
