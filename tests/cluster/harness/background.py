"""Work in a thread whose failure is raised by whoever waits for it."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from typing import Self


class Background(ABC):
    """Works while entered; what the work raises is raised when it is left, or asked for.

    Args:
        name: of the thread.
        patience: seconds that the work may take to end.
    """

    def __init__(self, name: str, *, patience: float) -> None:
        self._patience = patience
        self._stop = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @abstractmethod
    def work(self) -> None:
        """A piece of the work; called again and again."""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(self._patience)
        self.check()

    def check(self) -> None:
        """Raises what has ended the thread."""
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                self.work()
        except BaseException as error:  # noqa: BLE001 - raised again by whoever waits
            self._error = error
