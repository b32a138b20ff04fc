"""Requests that an API server has answered, by its audit log."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dra.common.resources import at
from hack.cluster.controlplane import AUDIT_LOG, ControlPlane

WRITES = frozenset({"create", "update", "patch", "delete", "deletecollection"})


@dataclass(frozen=True, slots=True)
class Request:
    """One request that the API server answered; `status` is the one of HTTP.

    `takes_back`: kube-scheduler took the allocation of a claim back.
    """

    user: str
    verb: str
    resource: str
    name: str
    status: int
    takes_back: bool = False


class AuditLog:
    """Reads the log that an API server is appending to."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def mark(self) -> int:
        """A position: `writes(since=mark)` leaves out what was logged before."""
        return self.path.stat().st_size if self.path.exists() else 0

    def writes(self, *, since: int = 0, user: str = "") -> list[Request]:
        """The writes in order, of one user or of all."""
        found = self.requests(since=since)
        return [each for each in found if each.verb in WRITES and user in {"", each.user}]

    def requests(self, *, since: int = 0) -> list[Request]:
        """All that is logged, in order."""
        with self.path.open("rb") as log:
            log.seek(since)
            lines = log.read().splitlines(keepends=True)
        events = (json.loads(line) for line in lines if line.endswith(b"\n"))
        return [_request(event) for event in events]


def _request(event: dict[str, Any]) -> Request:
    target = at(event, "objectRef", default={})
    subresource = target.get("subresource", "")
    resource = target.get("resource", "")
    return Request(
        user=event["user"].get("username", ""),
        verb=event["verb"],
        resource=f"{resource}/{subresource}" if subresource else resource,
        name=target.get("name", ""),
        status=at(event, "responseStatus", "code", default=0),
        takes_back=event["verb"] == "update"
        and "requestObject" in event
        and not at(event, "requestObject", "status", "allocation"),
    )


def audit(control_plane: ControlPlane) -> AuditLog:
    """The audit log of a control plane."""
    return AuditLog(control_plane.root / AUDIT_LOG)
