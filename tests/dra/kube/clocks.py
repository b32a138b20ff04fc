"""Clocks that the tests turn by hand."""

import threading
from datetime import UTC, datetime, timedelta


class FakeClock:
    """Stands still, except that a wait moves it on at once by what was asked for."""

    def __init__(self, offset: float = 0.0) -> None:
        self.at = offset
        self.waits: list[float] = []

    def monotonic(self) -> float:
        return self.at

    def now(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=self.at)

    def wait(self, event: threading.Event, seconds: float) -> bool:
        self.waits.append(seconds)
        self.at += seconds
        return event.is_set()

    def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.at += seconds
