"""The fenced blocks of README and handbook, with the marker above each.

A marker is an HTML comment on the line above the fence: ``runs: cluster`` (the commands are run
on a simulated cluster), ``runs: make`` (a target of the Makefile that CI runs or that has its own
test), ``not run: <reason>``, ``file: <name>`` (a manifest that commands of the page use),
``values`` (values of the chart), ``excerpt`` (a part of a manifest).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[3]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
_BLOCK = re.compile(
    r"(?:^<!--\s*(?P<marker>.*?)\s*-->\n)?^```(?P<language>\w+)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block; ``line`` is where its text begins. ``marker`` is empty if none."""

    page: Path
    line: int
    language: str
    marker: str
    text: str

    @property
    def place(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def kind(self) -> str:
        return self.marker.partition(":")[0].strip()

    @property
    def argument(self) -> str:
        return self.marker.partition(":")[2].strip()


def blocks(page: Path) -> list[Block]:
    """The blocks of a page that name a language, in order."""
    text = page.read_text()
    return [
        Block(
            page=page,
            line=text.count("\n", 0, found.start("text")) + 1,
            language=found["language"],
            marker=found["marker"] or "",
            text=found["text"],
        )
        for found in _BLOCK.finditer(text)
    ]
