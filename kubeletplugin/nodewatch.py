"""Watching this node's Node object for other programs that manage its GPUs."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from dra.kube.errors import KubeError
from dra.kube.reflector import Change, Reflector
from dra.kube.resources import NODES, Obj
from dra.kube.transport import KubeApi
from kubeletplugin.managers import Conflict, conflict
from kubeletplugin.reports import Reports

_log = logging.getLogger(__name__)


class NodeWatch:
    """Tells when another manager appears or goes; ``on_conflict`` gets it, or None."""

    def __init__(
        self,
        api: KubeApi,
        node_name: str,
        *,
        on_conflict: Callable[[Conflict | None], None],
        reports: Reports,
    ) -> None:
        self._api = api
        self._node_name = node_name
        self._on_conflict = on_conflict
        self._reports = reports
        self._lock = threading.Lock()
        self._current: Conflict | None = None
        self._reflector = Reflector(
            api,
            NODES,
            field_selector=f"metadata.name={node_name}",
            on_event=self._changed,
        )

    def start(self) -> None:
        """Begin to watch."""
        self._reflector.start()

    def stop(self) -> None:
        """End."""
        self._reflector.stop()

    def look(self) -> None:
        """Look once, now; without an answer everything stays as it is."""
        try:
            self._see(self._api.get(NODES, self._node_name))
        except KubeError as error:
            _log.warning("node %s: %s", self._node_name, error)

    def _changed(self, change: Change) -> None:
        if change.new is not None:
            self._see(change.new)

    def _see(self, node: Obj) -> None:
        with self._lock:
            found = conflict(node)
            if found == self._current:
                return
            self._current = found
            self._on_conflict(found)
        if found is None:
            _log.info("no other program manages this node's GPUs any more")
            return
        _log.warning("GPUs are withheld: %s", found.problem)
        self._reports.node(found.reason, f"GPUs are withheld: {found.problem}", warning=True)
