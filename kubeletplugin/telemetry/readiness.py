"""Readiness of the plugin to serve claims, and the reason while it is not ready."""

from __future__ import annotations

import threading
from collections.abc import Callable

from kubeletplugin.errors import StartingError


class Readiness:
    """Not ready until hardware is known and recovered; thread-safe.

    While the plugin starts there is no reason, and callers wait: kubelet repeats a failed call only
    after a minute or more. ``on_change`` is called after each change, without a lock.
    """

    def __init__(self, *, on_change: Callable[[], None]) -> None:
        self._on_change = on_change
        self._condition = threading.Condition()
        self._ready = False
        self._reason = ""

    def set_ready(self) -> None:
        """Serve claims from now on."""
        with self._condition:
            self._ready, self._reason = True, ""
            self._condition.notify_all()
        self._on_change()

    def set_unready(self, reason: str) -> None:
        """Turn all callers away with ``reason`` from now on."""
        with self._condition:
            self._ready, self._reason = False, reason
            self._condition.notify_all()
        self._on_change()

    @property
    def reason(self) -> str:
        """Reason for not being ready; empty when ready, or while the plugin starts."""
        with self._condition:
            return self._reason

    @property
    def is_ready(self) -> bool:
        """True if claims are served."""
        with self._condition:
            return self._ready

    def wait_decided(self, timeout: float) -> bool:
        """Wait until it is ready, or has a reason not to be; False if neither came in time."""
        with self._condition:
            return self._condition.wait_for(lambda: self._ready or bool(self._reason), timeout)

    def wait_ready(self, timeout: float) -> None:
        """Wait at most ``timeout`` seconds for a start that is under way.

        Raises:
            StartingError: not ready for a reason, or the start takes longer.
        """
        with self._condition:
            self._condition.wait_for(lambda: self._ready or self._reason, timeout)
            if not self._ready:
                raise StartingError(
                    self._reason or "the plugin is still looking at its GPUs; it is tried again"
                )
