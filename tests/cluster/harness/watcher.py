"""A thread that hands every event of a kind to somebody, in order, missing none."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Callable

    from hack.cluster.api import Api, Obj

_WINDOW_SECONDS = 4


class Watcher:
    """Watches while entered; what `on_event` or the watch raises is raised when it is left.

    Args:
        api: as the administrator.
        kind: of namespace default.
        on_event: called in the watcher's thread.
    """

    def __init__(self, api: Api, kind: str, on_event: Callable[[Obj], None]) -> None:
        self._api = api
        self._kind = kind
        self._on_event = on_event
        self._version = ""
        self._stop = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=f"watch {kind}", daemon=True)

    def __enter__(self) -> Self:
        self._version = self._api.version(self._kind)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(_WINDOW_SECONDS + 30)
        self.check()

    def check(self) -> None:
        """Raises what has ended the watch."""
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                # Each window begins where the one before ended, so that nothing is left out.
                for event in self._api.watch(
                    self._kind, since=self._version, seconds=_WINDOW_SECONDS
                ):
                    self._version = event["object"]["metadata"]["resourceVersion"]
                    self._on_event(event)
        except BaseException as error:  # noqa: BLE001 - raised again by whoever waits
            self._error = error
