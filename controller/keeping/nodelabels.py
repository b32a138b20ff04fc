"""Labels of nodes that tell of their GPUs, kept where nobody else writes such.

A node with NVIDIA's GPU feature discovery has its label ``nvidia.com/gfd.timestamp``: nothing of
ours stays there but the state of a layout, which that does not write. What others own of a node
without it, stays theirs: server-side apply without force says so. A write that changes nothing is
not made again, so that whoever overwrites us wins.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from controller.cluster.cluster import Cluster
from controller.cluster.effects import Effects
from controller.keeping.gpu_labels import DISCOVERED, node_labels, state_labels
from controller.writing.object_writer import ObjectWriter
from dra.kube.errors import ConflictError, KubeError
from dra.kube.timing import Backoff

_log = logging.getLogger(__name__)

_FIRST_PAUSE = 1.0
_LONGEST_PAUSE = 60.0
_FIELD = ".metadata.labels."


class NodeLabels:
    """Writes the labels of one node at a time. Not ``enabled``: none are written."""

    def __init__(
        self, cluster: Cluster, writer: ObjectWriter, now: Callable[[], float], *, enabled: bool
    ) -> None:
        self._cluster = cluster
        self._writer = writer
        self._now = now
        self._enabled = enabled
        self._mark = f"{cluster.driver}/labels"
        self._backoff = Backoff(first=_FIRST_PAUSE, limit=_LONGEST_PAUSE, jitter=0)
        self._waiting: dict[str, None] = {}
        self._applied: dict[str, dict[str, str]] = {}
        self._not_before = 0.0

    @property
    def due(self) -> float | None:
        """Monotonic time of the next write; None where there is none."""
        return self._not_before if self._waiting else None

    def note(self, effects: Effects) -> None:
        """Nodes, or what their GPUs are, may have changed."""
        if self._enabled:
            self._waiting.update(dict.fromkeys(sorted(effects.labels)))

    def write_if_due(self) -> bool:
        """Look at one node; False when none is due."""
        due = self.due
        if due is None or due > self._now():
            return False
        node = next(iter(self._waiting))
        del self._waiting[node]
        facts = self._cluster.hosts.facts.get(node)
        if facts is None:
            self._applied.pop(node, None)
            return True
        wanted = self._wanted(node, facts.labels)
        before = self._applied.get(node)
        if before != wanted and (wanted or self._mark in facts.labels or before):
            self._apply(node, wanted)
        return True

    def _wanted(self, node: str, labels: object) -> dict[str, str]:
        inventory = self._cluster.inventory(node)
        if inventory is None:
            return {}
        discovered = isinstance(labels, dict) and DISCOVERED in labels
        found = {} if discovered else node_labels(inventory)
        found |= state_labels(inventory)
        return {**found, self._mark: ""} if found else {}

    def _apply(self, node: str, wanted: dict[str, str]) -> None:
        try:
            left = wanted
            try:
                self._writer.apply_node_labels(node, left)
            except ConflictError as error:
                theirs = _owned_by_others(error)
                left = {key: value for key, value in wanted.items() if key not in theirs}
                fields = {"node": node, "labels": ", ".join(sorted(theirs))}
                _log.warning("labels of a node belong to others and stay theirs", extra=fields)
                self._writer.apply_node_labels(node, left)
        except KubeError as error:
            self._waiting[node] = None
            pause = self._backoff.next_delay()
            self._not_before = self._now() + pause
            fields = {"node": node, "pause": str(pause), "error": str(error)}
            _log.warning("labels of a node not written; trying again", extra=fields)
        else:
            self._backoff.reset()
            self._applied[node] = wanted


def _owned_by_others(error: ConflictError) -> set[str]:
    """Keys that other field managers own, by the answer to an apply without force."""
    causes = error.details.get("causes") or ()
    fields = (str(cause.get("field") or "") for cause in causes)
    return {field.removeprefix(_FIELD) for field in fields if field.startswith(_FIELD)}
