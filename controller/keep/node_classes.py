"""Events on Nodes whose labels choose a class that does not exist or is not valid.

The node program decides about the class, and reports it in the same words on its own Node. The
controller reports it also before that program runs, and where it cannot run. The files of the
classes lie in a directory, into which the chart mounts their ConfigMaps; kubelet may exchange the
files at any time.
"""

from __future__ import annotations

import logging
from pathlib import Path

from controller import times
from controller.cluster.records import Effects
from controller.serve.world import World
from dra.gpu.layouts import SUFFIXES, Classes, choose, class_label, mode_label, read_files

_log = logging.getLogger(__name__)


class NodeClasses:
    """Reads the files of classes in ``folder``, and checks Nodes when these or the files change."""

    def __init__(self, world: World, folder: Path) -> None:
        self._cluster = world.cluster
        self._reporter = world.reporter
        self._now = world.now
        self._folder = folder
        self._failure = ""
        self._known: Classes | None = None
        self._changed: set[str] = set()
        self._told: dict[str, str] = {}
        self.due = world.now()

    def note(self, effects: Effects) -> None:
        if effects.changed_nodes:
            self._changed |= effects.changed_nodes
            self.due = self._now()

    def work(self) -> None:
        """Read the files, and check the Nodes that may be concerned."""
        self.due = self._now() + times.CLASS_FILES
        found = self._read()
        if found is not None and found != self._known:
            self._known = found
            self._changed |= self._cluster.hosts.facts.keys()
            for name, problem in found.problems.items():
                _log.error("class %s of nodes: %s", name, problem)
        if self._known is None:
            return
        changed, self._changed = self._changed | self._told.keys(), set()
        for node in sorted(changed):
            self._tell(node, self._problem(node, self._known))

    def _read(self) -> Classes | None:
        """Content of all files, valid or not; None while the directory cannot be read."""
        try:
            files = sorted(
                path
                for path in self._folder.iterdir()
                if path.suffix in SUFFIXES and not path.name.startswith(".") and path.is_file()
            )
        except OSError as error:
            if str(error) != self._failure:
                _log.error("classes of nodes cannot be read: %s", error)
            self._failure = str(error)
            return None
        self._failure = ""
        return read_files((path.name, _content(path)) for path in files)

    def _problem(self, node: str, known: Classes) -> str:
        """Fault in the class or mode that the labels of a Node of ours choose; empty if none."""
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
            self._reporter.on_node(node, problem)
        else:
            del self._told[node]
            _log.info("the class of a node is right again", extra={"node": node})


def _content(path: Path) -> bytes | OSError:
    try:
        return path.read_bytes()
    except OSError as error:
        return error
