"""Figures of a run: percentiles, ratios to the floor, the table, and the comparison of two."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

_HEADING = "| key | what | figure | floors | wanted | NVIDIA's driver |"
SLACK = 1.5
"""A ratio may be this much larger than the stored one: shared machines vary that much."""


def percentile(values: Iterable[float], share: float) -> float:
    """The smallest value that at least ``share`` of the values do not exceed.

    Raises:
        ValueError: there are no values.
    """
    ordered = sorted(values)
    if not ordered:
        raise ValueError("no values")
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


@dataclass(frozen=True, slots=True)
class Row:
    """One figure: ``ratio`` to the floor of the same run, None where a floor means nothing.

    ``most`` is the wanted figure in ``unit``, ``rival`` NVIDIA's driver's in words.
    """

    key: str
    what: str
    value: float
    unit: str
    ratio: float | None = None
    most: float | None = None
    rival: str = ""


def rendered(rows: Sequence[Row]) -> str:
    """The table as Markdown, so that it is stored as it is printed."""
    lines = [_HEADING, "|---|---|---|---|---|---|"]
    for row in rows:
        ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
        most = "" if row.most is None else f"≤ {row.most:g} {row.unit}"
        figure = f"{_short(row.value)} {row.unit}"
        lines.append(f"| {row.key} | {row.what} | {figure} | {ratio} | {most} | {row.rival} |")
    return "\n".join(lines)


def ratios(table: str) -> dict[str, float]:
    """The ratios of the rendered tables of a page by key; its other tables are passed over.

    Raises:
        ValueError: a ratio in one is no number.
    """
    found: dict[str, float] = {}
    inside = False
    for line in table.splitlines():
        inside = line == _HEADING or (inside and line.startswith("|"))
        if not inside or not line.startswith("| ") or line == _HEADING:
            continue
        key, _, _, ratio, *_ = (cell.strip() for cell in line.strip("|").split("|"))
        if ratio:
            found[key] = float(ratio)
    return found


def worse(
    now: Mapping[str, float], stored: Mapping[str, float], *, slack: float = SLACK
) -> list[str]:
    """In words, each stored ratio that is exceeded by more than ``slack`` times, or lacks."""
    found: list[str] = []
    for key, before in stored.items():
        if key not in now:
            found.append(f"{key}: not measured, the stored table has {before:.2f} floors")
        elif now[key] > before * slack:
            found.append(f"{key}: {now[key]:.2f} floors, the stored table has {before:.2f}")
    return found


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"  # noqa: PLR2004 - four digits say no more
