"""Log lines for people (key=value) or for machines (JSON), on standard error."""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Literal

import click

Format = Literal["text", "json"]

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
    handler.setFormatter(_Json() if style == "json" else _Text())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.getLogger("urllib3").setLevel(logging.WARNING)


def log_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """``command`` with the options ``--log-level`` and ``--log-format``, for ``configure``."""
    for flag, default, allowed in (
        ("--log-format", "text", ["text", "json"]),
        ("--log-level", "info", ["debug", "info", "warning", "error"]),
    ):
        option = click.option(flag, default=default, type=click.Choice(allowed), show_default=True)
        command = option(command)
    return command


class _Text(logging.Formatter):
    """``time level logger: message key=value ...``."""

    def format(self, record: logging.LogRecord) -> str:
        fields = "".join(f" {k}={_value(v)}" for k, v in _extra(record).items())
        line = f"{_time(record)} {record.levelname} {record.name}: {record.getMessage()}{fields}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class _Json(logging.Formatter):
    """One object a line."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_extra(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def _extra(record: logging.LogRecord) -> dict[str, Any]:
    return {k: v for k, v in vars(record).items() if k not in _STANDARD}


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")


def _value(value: object) -> str:
    text = str(value)
    return text if _PLAIN.fullmatch(text) else json.dumps(text)
