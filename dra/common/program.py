"""Things that every program needs: log lines, its end by a signal, addresses of the handbook."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import sys
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final, Literal

Format = Literal["text", "json"]
"""Log lines for people (key=value) or for machines."""

HOMEPAGE: Final = "https://github.com/dra-driver-nvidia-mig/dra-driver-nvidia-mig"
HANDBOOK: Final = f"{HOMEPAGE}/blob/main/docs"

_log = logging.getLogger(__name__)

_PLAIN = re.compile(r'[^\s"=]+')
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def configure(
    level: str, style: Format, *, enrich: Callable[[logging.LogRecord], None] = lambda _: None
) -> None:
    """Send all logging to standard error at ``level`` (debug, info, warning, error).

    ``enrich`` may add fields to a record, as attributes.
    """

    def enriched(record: logging.LogRecord) -> bool:
        enrich(record)
        return True

    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(enriched)
    handler.setFormatter(_Line(style))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


class _Line(logging.Formatter):
    """``time level logger: message key=value ...``, or one object of JSON a line."""

    def __init__(self, style: Format) -> None:
        super().__init__()
        self._form = style

    def format(self, record: logging.LogRecord) -> str:
        time, message, extra = _time(record), record.getMessage(), _extra(record)
        error = self.formatException(record.exc_info) if record.exc_info else ""
        if self._form == "text":
            fields = "".join(f" {k}={_value(v)}" for k, v in extra.items())
            line = f"{time} {record.levelname} {record.name}: {message}{fields}"
            return f"{line}\n{error}" if error else line
        level = record.levelname.lower()
        said = {"time": time, "level": level, "logger": record.name, "message": message, **extra}
        return json.dumps({**said, "exception": error} if error else said, default=str)


def _extra(record: logging.LogRecord) -> dict[str, Any]:
    return {k: v for k, v in vars(record).items() if k not in _STANDARD}


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")


def _value(value: object) -> str:
    text = str(value)
    return text if _PLAIN.fullmatch(text) else json.dumps(text)


def stop_on_signals(stop: Callable[[], None]) -> None:
    """Call ``stop`` at SIGTERM or SIGINT, in a thread of its own. For the main thread.

    A handler in Python runs in the main thread, between any two of its steps. If the main thread
    holds a lock then, as ``Event.wait`` and ``Thread.start`` do for a moment, a handler that takes
    that lock waits for ever. The handler here does nothing: the interpreter writes the number of
    the signal to a pipe when it comes (``signal.set_wakeup_fd``), and the thread reads it there.
    """
    read, written = os.pipe()
    os.set_blocking(written, False)
    signal.set_wakeup_fd(written, warn_on_full_buffer=False)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)

    def wait() -> None:
        while number := os.read(read, 1):
            _log.info("stopping", extra={"signal": signal.Signals(number[0]).name})
            stop()

    threading.Thread(target=wait, name="signals", daemon=True).start()


def page(name: str) -> str:
    """The address of a page: ``troubleshooting.md`` or ``troubleshooting.md#it-does-not-go``.

    Readers of messages may have no copy of the handbook's source.
    """
    return f"{HANDBOOK}/{name}"
