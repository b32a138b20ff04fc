"""Tools for tests: counters of writes, and faults to inject. None of this exists in Kubernetes."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dra.common.resources import Obj
from sim.apiserver.refusals import errors

if TYPE_CHECKING:
    from sim.apiserver.forms.requests import Request
    from sim.apiserver.verbs.incoming import Target


@dataclass(slots=True)
class Fault:
    """A trap for the next `count` requests of a method whose path a pattern finds.

    They answer `status`, or lose their connection (`drop`), or are delayed by `delay` seconds and
    then served. `after` lets the request be carried out first: the answer is lost, not the write.
    """

    method: str
    path: re.Pattern[str]
    count: int
    status: int = 0
    drop: bool = False
    delay: float = 0.0
    after: bool = False
    message: str = "injected fault"

    @classmethod
    def parse(cls, body: Any) -> Fault:
        """Reads a fault (400 if it is malformed)."""
        try:
            return cls(
                method=str(body.get("method", "*")).upper(),
                path=re.compile(body.get("path", "")),
                count=int(body.get("count", 1)),
                status=int(body.get("status", 0)),
                drop=bool(body.get("drop", False)),
                delay=float(body.get("delay", 0.0)),
                after=bool(body.get("after", False)),
                message=str(body.get("message", "injected fault")),
            )
        except (AttributeError, TypeError, ValueError, re.error) as failure:
            raise errors.bad_request(f"fault: {failure}") from None


class Debug:
    """Counters and faults of one server."""

    def __init__(self) -> None:
        self.writes: Counter[str] = Counter()
        self.requests: Counter[str] = Counter()
        self.writers: dict[str, Counter[str]] = {}
        self.faults: list[Fault] = []

    def count(self, verb: str, target: Target, *, written: bool, agent: str) -> None:
        """Counts a served request of a user agent, and whether it changed something."""
        name = "/".join(filter(None, (target.resource.qualified, target.subresource)))
        self.requests[f"{verb} {name}"] += 1
        if written:
            self.writes[f"{verb} {name}"] += 1
            self.writers.setdefault(agent, Counter())[f"{verb} {name}"] += 1

    def forget(self) -> None:
        """Begins to count anew."""
        self.writes.clear()
        self.requests.clear()
        self.writers.clear()

    def fault_for(self, request: Request) -> Fault | None:
        """The fault that this request runs into, used up by one."""
        for fault in self.faults:
            if fault.method in ("*", request.method) and fault.path.search(request.path):
                fault.count -= 1
                if fault.count <= 0:
                    self.faults.remove(fault)
                return fault
        return None

    def report(self, version: int) -> Obj:
        """Answers GET /debug/writes."""
        return {
            "resourceVersion": version,
            "total": self.writes.total(),
            "writes": dict(sorted(self.writes.items())),
            "requests": dict(sorted(self.requests.items())),
            "writers": {agent: dict(sorted(c.items())) for agent, c in self.writers.items()},
            "faults": len(self.faults),
        }
