"""Text for people, in colour where it is wanted."""

from __future__ import annotations

import os
import textwrap
from typing import TextIO

from dra.gpu.placement_map import Style

_WIDTH = 92
_BOLD, _GREEN, _YELLOW, _RED = "1", "32", "33", "31"


def _wrap(text: str, width: int) -> list[str]:
    """Lines that leave names with hyphens whole."""
    return textwrap.wrap(text, width, break_on_hyphens=False) or [""]


class Terminal:
    """Writes to a stream; colours on a terminal, unless NO_COLOR is set or TERM is dumb."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.style = Style.of(stream, os.environ)

    def line(self, text: str = "") -> None:
        """One line as it is."""
        if self.style.ascii_only:
            text = text.encode("ascii", "replace").decode()
        self._stream.write(text + "\n")
        self._stream.flush()

    def block(self, text: str, *, indent: str = "  ") -> None:
        """Several lines, indented."""
        for line in text.splitlines():
            self.line(indent + line)

    def heading(self, text: str) -> None:
        """The start of a part."""
        self.line()
        self.line(self._paint(text, _BOLD))

    def say(self, text: str, *, indent: str = "  ") -> None:
        """A sentence, wrapped."""
        for line in _wrap(text, _WIDTH - len(indent)):
            self.line(indent + line)

    def term(self, name: str, text: str) -> None:
        """A name and what is to be said about it, in two columns."""
        lines = _wrap(text, _WIDTH - 14)
        self.line(f"  {self._paint(f'{name:<11}', _BOLD)} {lines[0]}")
        for line in lines[1:]:
            self.line(" " * 14 + line)

    def good(self, text: str) -> None:
        """Something holds."""
        self.line("  " + self._paint("ok", _GREEN) + "  " + text)

    def waits(self, text: str) -> None:
        """Something waits."""
        self.line(self._paint(text, _YELLOW))

    def bad(self, text: str) -> None:
        """Something does not hold."""
        first, _, rest = text.partition("\n")
        self.line(self._paint(first, _RED))
        if rest:
            self.line(rest)

    def _paint(self, text: str, code: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self.style.color else text
