"""The report as one screen of text."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from kubeletplugin.check.report import Finding, Mark, Report

WIDTH = 100
_LABEL = 28
_MARKS = {Mark.OK: "ok", Mark.NOTE: "note", Mark.MISSING: "MISSING"}


def draw(report: Report) -> str:
    """The report as text: present parts, and missing ones, each with its remedy."""
    missing = [f for f in report.findings if f.mark is Mark.MISSING]
    where = f" on {report.node}" if report.node else ""
    verdict = (
        f"slices can be made{where}"
        if not missing
        else f"no slice can be made{where}: {len(missing)} of {len(report.findings)} are missing"
    )
    lines = [f"{verdict} ({report.taken})", ""]
    for finding in report.findings:
        lines.extend(_lines(finding))
    if report.beliefs:
        lines += ["", "settled:"]
        for belief in report.beliefs:
            answer = f"{belief.answer}: {belief.detail}" if belief.detail else belief.answer
            lines.extend(_wrapped(f"  {belief.item:<{_LABEL - 2}}", answer))
    return "\n".join(lines) + "\n"


def _lines(finding: Finding) -> Iterator[str]:
    label = f"{_MARKS[finding.mark]:<8} {finding.item}"
    yield from _wrapped(f"{label:<{_LABEL}}", finding.text)
    if finding.remedy:
        yield from _wrapped(" " * _LABEL, f"-> {finding.remedy}")


def _wrapped(label: str, text: str) -> Iterator[str]:
    yield from textwrap.wrap(
        text,
        WIDTH,
        initial_indent=label,
        subsequent_indent=" " * _LABEL,
        break_long_words=False,
        break_on_hyphens=False,
    )
