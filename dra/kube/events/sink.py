"""Sinks of events, as those see them who have something to report."""

from __future__ import annotations

from typing import Protocol

from dra.common.resources import Obj


class EventSink(Protocol):
    """Taker of events; :class:`dra.kube.events.events.EventRecorder` is one. Thread-safe."""

    def emit(self, regarding: Obj, reason: str, message: str, *, warning: bool = False) -> None:
        """Report about an object (with apiVersion, kind and metadata); never blocks or raises."""
