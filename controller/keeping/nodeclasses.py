"""Classes of nodes that cannot be, told of the Nodes that have them.

The words are those of the node program, which has the last one and tells of its own Node: a Node
hears them here before that program runs there, and where it cannot.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from controller.cluster.cluster import Cluster
from controller.cluster.effects import Effects
from controller.reporting.report import Reporter
from dra.gpu.layouts import Classes, choose, class_label, mode_label

_log = logging.getLogger(__name__)

_SECONDS = 10.0
"""Time between two looks at the files."""


class NodeClasses:
    """Looks at files and at Nodes that changed. Without ``read`` no class is configured.

    ``read`` returns what the files say, or None while that is not known.
    """

    def __init__(
        self,
        cluster: Cluster,
        reporter: Reporter,
        now: Callable[[], float],
        *,
        read: Callable[[], Classes | None] | None,
    ) -> None:
        self._cluster = cluster
        self._reporter = reporter
        self._now = now
        self._read = read
        self._known: Classes | None = None
        self._changed: set[str] = set()
        self._told: dict[str, str] = {}
        self.due: float | None = now() if read is not None else None

    def note(self, effects: Effects) -> None:
        """Labels of Nodes, or what their GPUs are, may have changed."""
        if self._read is not None and effects.labels:
            self._changed |= effects.labels
            self.due = self._now()

    def look_if_due(self) -> bool:
        """Look at the files, and at the Nodes that this may concern; False when not due."""
        if self._read is None or self.due is None:
            return False
        now = self._now()
        if self.due > now:
            return False
        self.due = now + _SECONDS
        found = self._read()
        if found is not None and found != self._known:
            self._known = found
            self._changed |= self._cluster.hosts.facts.keys()
            for name, problem in found.problems.items():
                _log.error("class %s of nodes: %s", name, problem)
        if self._known is None:
            return True
        changed, self._changed = self._changed | self._told.keys(), set()
        for node in sorted(changed):
            self._tell(node, self._problem(node, self._known))
        return True

    def _problem(self, node: str, known: Classes) -> str:
        """Fault of what a Node of ours is to be; empty without one."""
        facts, driver = self._cluster.hosts.facts.get(node), self._cluster.driver
        if facts is None:
            return ""
        ours = {class_label(driver), mode_label(driver)}
        if self._cluster.inventory(node) is None and ours.isdisjoint(facts.labels):
            return ""
        return choose(facts.labels, known, driver=driver).problem

    def _tell(self, node: str, problem: str) -> None:
        if self._told.get(node, "") == problem:
            return
        if problem:
            self._told[node] = problem
            self._reporter.node_class(node, problem)
        else:
            del self._told[node]
            _log.info("the class of a node is right again", extra={"node": node})
