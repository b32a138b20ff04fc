"""Readiness of the plugin to serve claims, and the reason while it is not ready."""

from __future__ import annotations

import threading
from collections.abc import Callable

from kubeletplugin.errors import StartingError


class Readiness:
    """Closed until hardware is known and recovered; thread-safe.

    While the plugin starts, readiness is closed without a reason, and callers wait for it: kubelet
    repeats a failed call only after a minute or more.
    """

    def __init__(self, *, on_change: Callable[[], None]) -> None:
        self._on_change = on_change
        self._condition = threading.Condition()
        self._open = False
        self._reason = ""

    def open(self) -> None:
        """Let all callers through."""
        with self._condition:
            self._open, self._reason = True, ""
            self._condition.notify_all()
        self._on_change()

    def close(self, reason: str) -> None:
        """Turn all callers away with ``reason``."""
        with self._condition:
            self._open, self._reason = False, reason
            self._condition.notify_all()
        self._on_change()

    @property
    def reason(self) -> str:
        """Reason for being closed; empty when open, or while the plugin starts."""
        with self._condition:
            return self._reason

    @property
    def is_open(self) -> bool:
        """Whether claims are served."""
        with self._condition:
            return self._open

    def wait_decided(self, timeout: float) -> bool:
        """Wait until it is open, or closed with a reason; False if neither came in time."""
        with self._condition:
            return self._condition.wait_for(lambda: self._open or bool(self._reason), timeout)

    def enter(self, timeout: float) -> None:
        """Pass, after waiting for a start that is under way.

        Raises:
            StartingError: closed for a reason, or the start takes longer than ``timeout``.
        """
        with self._condition:
            self._condition.wait_for(lambda: self._open or self._reason, timeout)
            if not self._open:
                raise StartingError(
                    self._reason or "the plugin is still looking at its GPUs; it is tried again"
                )
