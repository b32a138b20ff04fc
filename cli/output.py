"""Output of a command, text for people or JSON for programs, and its exit code."""

from __future__ import annotations

import json
import os
import re
import shutil
import textwrap
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import fields
from datetime import datetime
from enum import IntEnum
from typing import Any, TextIO

API_VERSION = "cli.mig.dra.dev/v1"
"""API version of everything that ``-o json`` prints; docs/kubectl-mig.md describes it."""

_BOLD, _DIM, _GREEN, _YELLOW, _RED = "1", "2", "32", "33", "31"
_ESCAPES = re.compile(r"\x1b\[[0-9;]*m")
_UNUSUAL = re.compile(r"[^\t\n -~]")
_STRAY = re.compile(rf"(?!\x1b\[[0-9;]*m){_UNUSUAL.pattern}")
_IGNORED = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)
"""Characters that are not shown, though Unicode's category does not tell.

They have the property Default_Ignorable_Code_Point.
"""
NAME = "\0"
"""Mark that stands in a text for an object's name."""

_BREAKS = str.maketrans("\n\t", "  ")


class Exit(IntEnum):
    """Exit code of a command, on which scripts rely: its result, or why it could not look."""

    OK = 0
    FINDING = 1
    """Something waits, is wrong, or is not done yet."""
    USAGE = 2
    UNREACHABLE = 3
    """No usable kubeconfig, or no answer from the API server."""
    NOT_FOUND = 4
    FORBIDDEN = 5
    INTERRUPTED = 130


class CliError(Exception):
    """A command cannot go on; the message says why and what to do."""

    def __init__(self, code: Exit, message: str) -> None:
        super().__init__(message)
        self.code = code


def harmless(text: str, *, newlines: bool = False) -> str:
    """``text`` without characters that a terminal obeys, that change others, or that nobody sees.

    ``newlines``: line breaks and tabs become spaces as well, so that the text is one line.
    """
    text = _UNUSUAL.sub(_seen, text)
    return text.translate(_BREAKS) if newlines else text


def _seen(found: re.Match[str]) -> str:
    """The character, or U+FFFD for one that is a control, a format character or not shown."""
    char = found[0]
    kind = unicodedata.category(char)
    return "\ufffd" if kind[0] == "C" or kind in ("Zl", "Zp") or _IGNORED.match(char) else char


def counted(number: int, noun: str) -> str:
    """``1 node``, ``2 nodes``: a regular noun with its number."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def ago(then: datetime, now: datetime) -> str:
    """Time from ``then`` to ``now`` as kubectl shows ages: ``45s``, ``3m``, ``2h``, ``5d``."""
    seconds = max(0, int((now - then).total_seconds()))
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * length:
            return f"{seconds // length}{unit}"
    return f"{seconds}s"


def named(names: Sequence[str], limit: int = 5) -> str:
    """``a, b and 3 more``."""
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more


def natural(name: str) -> list[tuple[int, str]]:
    """A key by which ``node-10`` comes after ``node-2``."""
    parts = re.findall(r"\d+|\D+", name)
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in parts]


def nameless(text: str, *names: str) -> str:
    """``text`` with ``NAME`` for each name, so that texts which differ in names alone are equal."""
    either = "|".join(map(re.escape, filter(None, names)))
    return re.sub(rf"(?<![\w.-])({either})(?![\w-]|\.\w)", NAME, text) if either else text


def _as_object(record: Any) -> dict[str, Any]:
    names = getattr(record, "__struct_fields__", None) or [f.name for f in fields(record)]
    return {_camel(name): getattr(record, name) for name in names}


def _camel(name: str) -> str:
    """``freeMemoryMiB`` for ``free_memory_mib``."""
    first, *others = name.split("_")
    return first + "".join("MiB" if word == "mib" else word.capitalize() for word in others)


class Output:
    """Writes to a stream as ``-o`` says: ``text``, ``wide`` (more text) or ``json``."""

    def __init__(self, stream: TextIO, *, form: str = "text", color: bool = True) -> None:
        from dra.gpu.placement_map import Style  # noqa: PLC0415 - help does without the model

        style = Style.of(stream, os.environ)
        self.style = Style(color=style.color and color, ascii_only=style.ascii_only)
        self.form = form
        self._stream = stream

    @property
    def is_json(self) -> bool:
        """True if the output is JSON, for programs."""
        return self.form == "json"

    @property
    def width(self) -> int:
        """Columns of the terminal; 100 without one. The variable COLUMNS overrides both."""
        return max(40, shutil.get_terminal_size((100, 40)).columns)

    def json(self, kind: str, content: dict[str, Any]) -> None:
        """Write one JSON document, with ``apiVersion`` and ``kind`` first.

        Dataclasses and msgspec's structs in ``content`` become objects, fields in camel case.
        """
        document = {"apiVersion": API_VERSION, "kind": kind, **content}
        json.dump(document, self._stream, indent=2, default=_as_object)
        self._stream.write("\n")
        self._stream.flush()

    def line(self, text: str = "") -> None:
        """Write ``text`` as one line: line breaks become spaces, all escapes but colours U+FFFD."""
        text = _STRAY.sub(_seen, text).translate(_BREAKS)
        if self.style.ascii_only:
            text = text.encode("ascii", "replace").decode()
        self._stream.write(text.rstrip() + "\n")

    def document(self, text: str) -> None:
        """Write the lines of a document, such as YAML."""
        for line in text.splitlines():
            self.line(line)

    def paragraph(self, indent: str, head: str, text: str) -> None:
        """Write ``head`` and ``text``: wrapped on a terminal, else as one line."""
        first = f"{indent}{head}"
        if not self._stream.isatty():
            self.line(first + text)
            return
        shown = len(_ESCAPES.sub("", head))
        room = max(20, self.width - len(indent) - shown)
        lines = textwrap.wrap(text, room, break_on_hyphens=False) or [""]
        self.line(first + lines[0])
        for line in lines[1:]:
            self.line(" " * (len(indent) + shown) + line)

    def table(
        self, header: tuple[str, ...], rows: Sequence[tuple[str, ...]], indent: str = ""
    ) -> None:
        """Write a table with columns as wide as they must be, as kubectl prints them."""
        widths = [max(len(row[i]) for row in (header, *rows)) for i in range(len(header))]
        for number, row in enumerate((header, *rows)):
            cells = (text.ljust(width) for text, width in zip(row, widths, strict=True))
            text = "   ".join(cells).rstrip()
            self.line(indent + (self.bold(text) if number == 0 else text))

    def packed(self, entries: Iterable[str]) -> list[str]:
        """Lines with as many of ``entries`` each as the terminal has room for."""
        lines: list[str] = []
        for entry in entries:
            longer = f"{lines[-1]}   {entry}" if lines else ""
            if lines and len(_ESCAPES.sub("", longer)) <= self.width:
                lines[-1] = longer
            else:
                lines.append(entry)
        return lines

    def flush(self) -> None:
        """Show what was written."""
        self._stream.flush()

    def bold(self, text: str) -> str:
        """``text`` as a heading."""
        return self._paint(text, _BOLD)

    def dim(self, text: str) -> str:
        """``text`` in the colour of an aside."""
        return self._paint(text, _DIM)

    def good(self, text: str) -> str:
        """``text`` in the colour of what is right."""
        return self._paint(text, _GREEN)

    def odd(self, text: str) -> str:
        """``text`` in the colour of what is worth a look."""
        return self._paint(text, _YELLOW)

    def bad(self, text: str) -> str:
        """``text`` in the colour of what is wrong."""
        return self._paint(text, _RED)

    def _paint(self, text: str, code: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self.style.color and text else text
