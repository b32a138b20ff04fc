"""Findings and facts of a check, as they are taken down."""

from __future__ import annotations

from kubeletplugin.check.items import Item
from kubeletplugin.check.report import Finding, Mark


class Notebook:
    """Findings and facts so far, in order."""

    def __init__(self) -> None:
        self.findings: list[Finding] = []
        self.facts: dict[Item, tuple[str, ...]] = {}

    def ok(self, item: Item, text: str) -> None:
        """Record that an item is as slices need it."""
        self.findings.append(Finding(item=item, mark=Mark.OK, text=text))

    def note(self, item: Item, text: str, remedy: str = "") -> None:
        """Slices work without it; somebody may want to know."""
        self.findings.append(Finding(item=item, mark=Mark.NOTE, text=text, remedy=remedy))

    def missing(self, item: Item, text: str, remedy: str) -> None:
        """No slice works without it."""
        self.findings.append(Finding(item=item, mark=Mark.MISSING, text=text, remedy=remedy))

    def fact(self, item: Item, *words: str) -> None:
        """Fact that the report has beside the findings."""
        self.facts[item] = (*self.facts.get(item, ()), *words)
