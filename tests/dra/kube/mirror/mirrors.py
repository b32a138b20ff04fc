"""What the tests of the reflector share."""

from collections.abc import Callable

from dra.common.resources import Obj
from dra.kube.reflector import Change, Reflector
from tests.dra.kube.stub import Stub

Start = Callable[..., Reflector]


def bookmark(version: int) -> tuple[str, Obj]:
    return "BOOKMARK", {"kind": "Pod", "metadata": {"resourceVersion": str(version)}}


def summary(change: Change) -> tuple[str, str, str | None, str | None]:
    def version(obj: Obj | None) -> str | None:
        return None if obj is None else str(obj["metadata"]["resourceVersion"])

    obj = change.new or change.old or {}
    return change.kind, obj["metadata"]["name"], version(change.old), version(change.new)


class Seen:
    def __init__(self) -> None:
        self.changes: list[Change] = []

    def __call__(self, change: Change) -> None:
        self.changes.append(change)

    @property
    def summaries(self) -> list[tuple[str, str, str | None, str | None]]:
        return [summary(change) for change in self.changes]


def watched_versions(stub: Stub) -> list[str]:
    return [request.query["resourceVersion"] for request in stub.requests if request.is_watch]


def lists(stub: Stub) -> int:
    return sum(not request.is_watch for request in stub.requests)
