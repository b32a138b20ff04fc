"""Effort of a control plane and of who allocates: CPU time, writes, and looks of kube-scheduler.

On a machine that does other work besides, these say more than a rate does.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

_REQUESTS = re.compile(r"^apiserver_request_total{([^}]*)} (\S+)$", re.MULTILINE)
_ATTEMPTS = re.compile(r"^scheduler_schedule_attempts_total{([^}]*)} (\S+)$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="([^"]*)"')
_WRITES = frozenset({"POST", "PUT", "PATCH", "APPLY", "DELETE"})

Figures = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Effort:
    """CPU seconds by process, writes by what was written, and attempts by their result."""

    cpu: Figures = field(default_factory=dict)
    writes: Figures = field(default_factory=dict)
    attempts: Figures = field(default_factory=dict)

    def __add__(self, other: Effort) -> Effort:
        return self._with(other, 1)

    def __sub__(self, other: Effort) -> Effort:
        return self._with(other, -1)

    def _with(self, other: Effort, sign: int) -> Effort:
        return Effort(
            _sum(self.cpu, other.cpu, sign),
            _sum(self.writes, other.writes, sign),
            _sum(self.attempts, other.attempts, sign),
        )


def read_writes(metrics: str) -> dict[str, float]:
    """Writes that an API server has answered, but for pods that were made and bound."""
    found: dict[str, float] = {}
    for labels, count in _labelled(_REQUESTS, metrics):
        verb, resource = labels.get("verb", ""), labels.get("resource", "")
        if verb not in _WRITES or (verb, resource) == ("POST", "pods"):
            continue
        what = "/".join(filter(None, (resource, labels.get("subresource"))))
        key = f"{verb.lower()} {what}"
        found[key] = found.get(key, 0.0) + count
    return found


def read_attempts(metrics: str) -> dict[str, float]:
    """Attempts of a kube-scheduler to place a pod, by their result."""
    found: dict[str, float] = {}
    for labels, count in _labelled(_ATTEMPTS, metrics):
        result = labels.get("result", "")
        found[result] = found.get(result, 0.0) + count
    return found


def _labelled(line: re.Pattern[str], metrics: str) -> Iterable[tuple[dict[str, str], float]]:
    for labels, count in line.findall(metrics):
        yield dict(_LABEL.findall(labels)), float(count)


def _sum(left: Figures, right: Figures, sign: int) -> dict[str, float]:
    keys = dict.fromkeys([*left, *right])
    return {key: left.get(key, 0.0) + sign * right.get(key, 0.0) for key in keys}
