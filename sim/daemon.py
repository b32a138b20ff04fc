"""Daemon code that the stand-ins share: logging, and a life that ends with a signal."""

from __future__ import annotations

import logging
import threading
from typing import Protocol

from dra.common.program import stop_on_signals


class Service(Protocol):
    """Something with threads of its own."""

    def start(self) -> None:
        """Begins; returns at once."""

    def stop(self) -> None:
        """Ends, within a few seconds."""


def configure_logging(level: str) -> None:
    """One line per message on standard error."""
    logging.basicConfig(
        level=level.upper(), format="%(asctime)s %(levelname)-7s %(name)s: %(message)s"
    )


def run_until_signal(*services: Service) -> None:
    """Starts the services in order; on SIGTERM or SIGINT stops them in reverse order."""
    ended = threading.Event()
    stop_on_signals(ended.set)
    started: list[Service] = []
    try:
        for service in services:
            service.start()
            started.append(service)
        ended.wait()
    finally:
        for service in reversed(started):
            service.stop()
