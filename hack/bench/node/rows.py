"""Rows of the table: the floors, and the plugin's calls against the floor of the same pace."""

from __future__ import annotations

from collections.abc import Sequence

from hack.bench.node.figures import Row, percentile
from hack.bench.node.floor import Floor
from hack.bench.node.measures import Cycles

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
_PARTS = {"get": "GET of the claim", "nvml": "calls of NVML", "writes": "spec and records"}


def floor_rows(floors: Sequence[Floor], calls: Sequence[float]) -> list[Row]:
    """The floors at both paces, with what they are made of."""
    rows: list[Row] = []
    for floor, call, end, pace in zip(floors, calls, _ENDS, _PACES, strict=True):
        rows += [
            Row(f"empty{end}", f"empty call, {pace}", call, "ms"),
            *(
                Row(f"{part}{end}", f"least driver's {what}, {pace}", floor.parts[part], "ms")
                for part, what in _PARTS.items()
            ),
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
