"""Effort of a control plane and of who allocates: CPU time, and writes to the API server.

On a machine that does other work besides, these say more than a rate does.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from dra.kube.client.transport import KubeApi

_METRICS_BYTES = 64 * 2**20
_REQUESTS = re.compile(r"^apiserver_request_total{([^}]*)} (\S+)$", re.MULTILINE)
_WRITE = re.compile(r'verb="(POST|PUT|PATCH|APPLY|DELETE)"')
_OURSELVES = re.compile(r'verb="POST".*resource="pods",|resource="pods",.*verb="POST"')
"""Pods that the benchmark creates, and their bindings."""


@dataclass(frozen=True, slots=True)
class Effort:
    """CPU seconds of the controller and of the control plane, and writes that this one took."""

    controller: float = 0.0
    control_plane: float = 0.0
    writes: float = 0.0

    def __add__(self, other: Effort) -> Effort:
        return Effort(
            self.controller + other.controller,
            self.control_plane + other.control_plane,
            self.writes + other.writes,
        )

    def __sub__(self, other: Effort) -> Effort:
        return Effort(
            self.controller - other.controller,
            self.control_plane - other.control_plane,
            self.writes - other.writes,
        )


def count_writes(api: KubeApi) -> float:
    """Writes that the API server has answered, but for pods that were made and bound."""
    text = api.text("/metrics", query={}, limit_bytes=_METRICS_BYTES).decode()
    found = ((labels, float(count)) for labels, count in _REQUESTS.findall(text))
    return sum(n for labels, n in found if _WRITE.search(labels) and not _OURSELVES.search(labels))
