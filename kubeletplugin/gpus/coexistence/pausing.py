"""The pause that NVIDIA's driver-manager and MIG manager ask of a node's GPU clients by its labels.

Before they unload the driver, or change MIG mode, they set labels ``nvidia.com/gpu.deploy.*`` to a
value with ``paused-for-``, and put back what was there when they are done.
"""

from __future__ import annotations

import fnmatch
import logging
import re
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from dra.claims.reasons import NodeReason
from kubeletplugin.gpus.coexistence.other_managers import Conflict
from kubeletplugin.telemetry.reports import Reports

_log = logging.getLogger(__name__)

# A value that is neither true nor false keeps its own words in front: x_paused-for-driver-upgrade.
_PAUSED = re.compile(r"(^|_)paused-for-")


@dataclass(frozen=True, slots=True)
class Pause:
    """A label that asks for it, as it is on the Node: ``key=value``."""

    label: str

    @property
    def conflict(self) -> Conflict:
        """Reason why no slice is made on the node's GPUs meanwhile."""
        return Conflict(
            NodeReason.PAUSED,
            f"GPU clients of this node are to pause (label {self.label}): nothing new is prepared "
            f"until {self.label.partition('=')[0]} is true again or gone",
            passing=True,
        )


def pause_of(node: Mapping[str, Any], keys: Iterable[str]) -> Pause | None:
    """The pause that a Node (core/v1, as JSON) asks for; ``keys`` may have wildcards."""
    labels = node.get("metadata", {}).get("labels") or {}
    wanted = tuple(keys)
    for key, value in sorted(labels.items()):
        if _PAUSED.search(value) and any(fnmatch.fnmatchcase(key, k) for k in wanted):
            return Pause(f"{key}={value}")
    return None


class Pauses:
    """The pause that is asked for now; ``on_change`` hears of another, or of its end."""

    def __init__(
        self,
        keys: Iterable[str],
        *,
        reports: Reports,
        on_change: Callable[[Pause | None], None],
    ) -> None:
        self._keys = tuple(keys)
        self._reports = reports
        self._on_change = on_change
        self._lock = threading.Lock()
        self.current: Pause | None = None

    def see(self, node: Mapping[str, Any]) -> None:
        """Take note of this node's Node as it is now."""
        with self._lock:
            pause = pause_of(node, self._keys)
            before, self.current = self.current, pause
        if pause == before:
            return
        self._on_change(pause)
        if pause is None:
            _log.info("GPU clients of this node are not to pause any more")
        elif before is None:
            _log.warning("%s", pause.conflict.problem)
            self._reports.report_node(NodeReason.PAUSED, pause.conflict.problem)
