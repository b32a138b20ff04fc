"""Pictures of a terminal, with the colours that this project uses, as SVG. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from xml.sax.saxutils import escape

_CELL_WIDTH, _CELL_HEIGHT, _MARGIN, _FONT_SIZE = 8.43, 18, 16, 14
_FONTS = "DejaVu Sans Mono, Menlo, Consolas, monospace"
_BACKGROUND, _FOREGROUND, _DIMMED = "#16181d", "#d7dae0", "#7f8694"
_PLAIN = {"31": "#e06c75", "32": "#98c379", "33": "#e5c07b"}
_BLACK = "#101216"
_CUBE = (0, 95, 135, 175, 215, 255)
_DRAWN = "│░"
_WORDS = re.compile(r"│|░+|[^\s│░]+(?: [^\s│░]+)*")
_ESCAPE = re.compile(r"\x1b\[([0-9;]*)m")
_PROMPT = "$ "


@dataclass(frozen=True, slots=True)
class _Pen:
    color: str = _FOREGROUND
    background: str = ""
    bold: bool = False


def render(command: str, shown: str) -> str:
    """The SVG of a terminal in which ``command`` has just shown ``shown`` (with SGR escapes)."""
    lines = [f"\x1b[2m{_PROMPT}\x1b[0m{command}", *shown.replace("\r", "").rstrip("\n").split("\n")]
    columns = max(len(_ESCAPE.sub("", line)) for line in lines)
    width = round(columns * _CELL_WIDTH + 2 * _MARGIN)
    height = len(lines) * _CELL_HEIGHT + 2 * _MARGIN
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    font = f'font-size="{_FONT_SIZE}" font-family="{_FONTS}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} {font} shape-rendering="crispEdges">',
        f"<title>{escape(command)}</title>",
        f'<rect width="{width}" height="{height}" rx="8" fill="{_BACKGROUND}"/>',
    ]
    for number, line in enumerate(lines):
        parts += _line(line, _MARGIN + number * _CELL_HEIGHT)
    return "\n".join([*parts, "</svg>", ""])


def _line(line: str, top: int) -> list[str]:
    parts, column, pen = [], 0, _Pen()
    pieces = _ESCAPE.split(line)
    for index, piece in enumerate(pieces):
        if index % 2:
            pen = _switch(pen, piece)
        elif piece:
            parts += _run(piece, column, top, pen)
            column += len(piece)
    return parts


def _run(text: str, column: int, top: int, pen: _Pen) -> list[str]:
    """A run of one colour: a box behind it, and its words where their columns are."""
    x = _MARGIN + column * _CELL_WIDTH
    parts = []
    if pen.background:
        parts.append(
            f'<rect x="{x:.1f}" y="{top}" width="{len(text) * _CELL_WIDTH:.1f}" '
            f'height="{_CELL_HEIGHT}" fill="{pen.background}"/>'
        )
    weight = ' font-weight="bold"' if pen.bold else ""
    for found in _WORDS.finditer(text):
        word = found[0]
        at = x + found.start() * _CELL_WIDTH
        if word[0] in _DRAWN:
            parts.append(_drawn(word, at, top, pen.color))
            continue
        # The length makes the columns hold whatever monospaced font is there.
        parts.append(
            f'<text x="{at:.1f}" y="{top + 13.5}" fill="{pen.color}"{weight} '
            f'textLength="{len(word) * _CELL_WIDTH:.1f}" lengthAdjust="spacingAndGlyphs" '
            f'xml:space="preserve">{escape(word)}</text>'
        )
    return parts


def _drawn(characters: str, x: float, top: int, color: str) -> str:
    """Borders and hatching as shapes: fonts leave gaps between the lines."""
    width = len(characters) * _CELL_WIDTH
    if characters[0] == "│":
        x, width, opacity = x + _CELL_WIDTH / 2 - 0.5, 1.0, "0.55"
    else:
        opacity = "0.22"
    return (
        f'<rect x="{x:.1f}" y="{top}" width="{width:.1f}" height="{_CELL_HEIGHT}" '
        f'fill="{color}" fill-opacity="{opacity}"/>'
    )


def _switch(pen: _Pen, codes: str) -> _Pen:
    """The pen after an SGR sequence."""
    if codes in ("", "0"):
        return _Pen()
    if codes == "1":
        return replace(pen, bold=True)
    if codes == "2":
        return replace(pen, color=_DIMMED)
    if codes in _PLAIN:
        return replace(pen, color=_PLAIN[codes])
    found = re.fullmatch(r"30;48;5;(\d+)", codes)
    return replace(pen, color=_BLACK, background=_xterm(int(found[1]))) if found else pen


def _xterm(number: int) -> str:
    """One of xterm's 256 colours: the cube of 216, or the greys after it."""
    if number >= 232:  # noqa: PLR2004 - where the greys begin
        grey = 8 + 10 * (number - 232)
        return f"#{grey:02x}{grey:02x}{grey:02x}"
    red, rest = divmod(number - 16, 36)
    green, blue = divmod(rest, 6)
    return f"#{_CUBE[red]:02x}{_CUBE[green]:02x}{_CUBE[blue]:02x}"
