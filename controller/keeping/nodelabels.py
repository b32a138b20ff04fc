"""Labels of nodes that tell of their GPUs, kept where nobody else writes such.

A node with NVIDIA's GPU feature discovery has its label ``nvidia.com/gfd.timestamp``: nothing of
ours stays there but the state of a layout, which that does not write. What others own of a node
without it, stays theirs: server-side apply without force says so. A write that changes nothing is
not made again, so that whoever overwrites us wins.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

from controller.cluster.cluster import Cluster
from controller.cluster.effects import Effects
from controller.keeping.gpu_labels import DISCOVERED, node_labels, state_labels
from controller.writing.in_flight import InFlight
from controller.writing.leader_requests import NotLeadingError
from controller.writing.object_writer import ObjectWriter
from dra.common.resources import Obj
from dra.kube.errors import ConflictError
from dra.kube.timing import Backoff

_log = logging.getLogger(__name__)

_FIRST_PAUSE = 1.0
_LONGEST_PAUSE = 60.0
_FIELD = ".metadata.labels."


class NodeLabels:
    """Writes the labels of one node at a time. Not ``enabled``: none are written."""

    def __init__(
        self,
        cluster: Cluster,
        writer: ObjectWriter,
        in_flight: InFlight,
        now: Callable[[], float],
        *,
        enabled: bool,
    ) -> None:
        self._cluster = cluster
        self._writer = writer
        self._in_flight = in_flight
        self._now = now
        self._is_writing = False
        self._enabled = enabled
        self._mark = f"{cluster.driver}/labels"
        self._waiting: dict[str, float] = {}
        self._refused: dict[str, Backoff] = {}
        self._applied: dict[str, dict[str, str]] = {}

    @property
    def due(self) -> float | None:
        """Monotonic time of the next write; None where there is none, or one is under way."""
        if self._is_writing or self._in_flight.full:
            return None
        return min(self._waiting.values(), default=None)

    def note(self, effects: Effects) -> None:
        """Nodes, or what their GPUs are, may have changed."""
        if self._enabled:
            for node in sorted(effects.labels):
                self._waiting.setdefault(node, 0.0)

    def write_if_due(self) -> bool:
        """Look at one node; False when none is due."""
        if self._is_writing or self._in_flight.full:
            return False
        now = self._now()
        node = next((each for each, due in self._waiting.items() if due <= now), None)
        if node is None:
            return False
        del self._waiting[node]
        facts = self._cluster.hosts.facts.get(node)
        if facts is None:
            self._applied.pop(node, None)
            self._refused.pop(node, None)
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
        """Have labels written by another thread: hundreds of nodes are not to delay decisions."""

        def job() -> Iterator[Obj]:
            try:
                yield self._writer.apply_node_labels(node, wanted)
            except ConflictError as error:
                theirs = _owned_by_others(error)
                left = {key: value for key, value in wanted.items() if key not in theirs}
                fields = {"node": node, "labels": ", ".join(sorted(theirs))}
                _log.warning("labels of a node belong to others and stay theirs", extra=fields)
                yield self._writer.apply_node_labels(node, left)

        self._is_writing = True
        self._in_flight.start((), job, lambda answer: self._written(node, wanted, answer.error))

    def _written(self, node: str, wanted: dict[str, str], error: Exception | None) -> None:
        self._is_writing = False
        if isinstance(error, NotLeadingError):
            raise error
        if error is not None:
            # One node whose labels are refused keeps no other from having its own.
            pause = self._refused.setdefault(node, _pauses()).next_delay()
            self._waiting[node] = self._now() + pause
            fields = {"node": node, "pause": str(pause), "error": str(error)}
            _log.warning("labels of a node not written; trying again", extra=fields)
        else:
            self._refused.pop(node, None)
            self._applied[node] = wanted


def _pauses() -> Backoff:
    return Backoff(first=_FIRST_PAUSE, limit=_LONGEST_PAUSE, jitter=0)


def _owned_by_others(error: ConflictError) -> set[str]:
    """Keys that other field managers own, by the answer to an apply without force."""
    causes = error.details.get("causes") or ()
    fields = (str(cause.get("field") or "") for cause in causes)
    return {field.removeprefix(_FIELD) for field in fields if field.startswith(_FIELD)}
