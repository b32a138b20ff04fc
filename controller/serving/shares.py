"""Shares of the sandbox's time, by namespace."""

from __future__ import annotations

from collections.abc import Callable, Iterable

_HALF_LIFE_SECONDS = 10.0
_FORGOTTEN = 0.001


class Shares:
    """Time used by namespace, half of it forgotten every ten seconds."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._used: dict[str, float] = {}
        self._at = now()

    def add(self, namespace: str, seconds: float) -> None:
        """Count time that ``namespace`` has used."""
        self._used[namespace] = self._used.get(namespace, 0.0) + seconds

    def least(self, namespaces: Iterable[str]) -> str:
        """The one that has used the least; the first of equals."""
        now = self._now()
        faded = 0.5 ** ((now - self._at) / _HALF_LIFE_SECONDS)
        left = {name: used * faded for name, used in self._used.items()}
        self._used = {name: used for name, used in left.items() if used > _FORGOTTEN}
        self._at = now
        return min(namespaces, key=lambda name: self._used.get(name, 0.0))
