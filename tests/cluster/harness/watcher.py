"""A thread that hands every event of a kind to somebody, in order, missing none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from tests.cluster.harness.background import Background

if TYPE_CHECKING:
    from collections.abc import Callable

    from dra.common.resources import Obj
    from hack.cluster.api import Api

_WINDOW_SECONDS = 4


class Watcher(Background):
    """Watches while entered; what `on_event` or the watch raises is raised when it is left.

    Args:
        api: as the administrator.
        kind: of namespace default.
        on_event: called in the watcher's thread.
    """

    def __init__(self, api: Api, kind: str, on_event: Callable[[Obj], None]) -> None:
        super().__init__(f"watch {kind}", patience=_WINDOW_SECONDS + 30)
        self._api = api
        self._kind = kind
        self._on_event = on_event
        self._version = ""

    def __enter__(self) -> Self:
        self._version = self._api.version(self._kind)
        return super().__enter__()

    def work(self) -> None:
        """Watch for a while, from where the watch before ended, so that nothing is left out."""
        for event in self._api.watch(self._kind, since=self._version, seconds=_WINDOW_SECONDS):
            self._version = event["object"]["metadata"]["resourceVersion"]
            self._on_event(event)
