"""Table of a run: percentiles, rows with ratios to the floor, and the comparison of two runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hack.bench.node.measures import Cycles, Floor, percentile

_HEADING = "| key | what | figure | floors | wanted | NVIDIA's driver |"
SLACK = 1.5
"""A ratio may be this much larger than the stored one: shared machines vary that much."""


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


MOST = {
    "prepare": 5.0,
    "prepare-99": 15.0,
    "prepare-back": 6.0,
    "unprepare": 4.0,
    "cpu": 12.0,
    "cpu-back": 12.0,
    "burst-8-200": 260.0,
    "burst-4-0": 300.0,
    "burst-4-200": 1700.0,
    "burst-4-1000": 7300.0,
}
RIVAL = {
    "prepare": "5.8 ms",
    "prepare-99": "9.4 ms",
    "prepare-back": "198 ms; 3.6-4.4 without its client's limit",
    "unprepare": "1.6 ms",
    "cpu": "",
    "cpu-back": "",
    "burst-8-200": "2,314 ms",
    "burst-4-0": "3,630 ms",
    "burst-4-200": "8,332 ms",
    "burst-4-1000": "15 of 28 fail",
}
_ENDS = ("", "-back")
_PACES = ("paced", "back to back")


def floor_rows(floors: Sequence[Floor]) -> list[Row]:
    """The floors at both paces."""
    rows: list[Row] = []
    for floor, end, pace in zip(floors, _ENDS, _PACES, strict=True):
        rows += [
            Row(f"floor{end}", f"floor of a Prepare, {pace}", floor.prepare, "ms", ratio=1.0),
            Row(
                f"floor-un{end}", f"floor of an Unprepare, {pace}", floor.unprepare, "ms", ratio=1.0
            ),
            Row(f"floor-cpu{end}", f"floor of the CPU of both, {pace}", floor.cpu, "ms", ratio=1.0),
        ]
    return rows


def call_rows(found: Sequence[Cycles], floors: Sequence[Floor]) -> list[Row]:
    """The plugin's calls, those of each pace against the floor of that pace."""
    (paced, back), (slow, tight) = found, floors
    rows = [
        ("prepare", "Prepare, paced, p50", percentile(paced.prepare, 0.5), slow.prepare),
        ("prepare-99", "the same, p99", percentile(paced.prepare, 0.99), slow.prepare),
        (
            "prepare-back",
            "Prepare, back to back, p50",
            percentile(back.prepare, 0.5),
            tight.prepare,
        ),
        ("unprepare", "Unprepare, paced, p50", percentile(paced.unprepare, 0.5), slow.unprepare),
        ("cpu", "CPU of both, statuses written", paced.cpu, slow.cpu),
        ("cpu-back", "the same, back to back", back.cpu, tight.cpu),
    ]
    return [
        Row(key, what, value, "ms", ratio=value / under, most=MOST[key], rival=RIVAL[key])
        for key, what, value, under in rows
    ]
