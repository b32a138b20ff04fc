"""``kubectl mig replay``: recorded decisions, and what another policy would have come to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from statistics import fmean
from typing import Any

from cli.output import CliError, Exit, Output, counted, harmless
from cli.session import evaluator
from dra.allocator.score import POLICIES
from dra.cel.kinds import Kinds
from dra.replay.form import LINE_BYTES, NodeState, Recording, RecordingError, read
from dra.replay.play import Fate, Played, as_recorded, play
from dra.replay.setting import Setting

_SECOND = 1_000_000
_SHOWN = 10


def run(  # noqa: PLR0913 - the options of the command
    out: Output, *, file: str, policy: str, gpus: int | None, nodes: int | None, layout: str
) -> int:
    """Show what was recorded beside what the replay came to."""
    setting = _setting(policy, gpus, nodes, layout)
    path = Path(file)
    with evaluator() as asked:
        kinds = Kinds(asked)
        try:
            with path.open("rb") as lines:
                recording = read(iter(lambda: lines.readline(LINE_BYTES), b""))
            was, played = as_recorded(recording, kinds=kinds), play(recording, setting, kinds=kinds)
        except RecordingError as error:
            raise CliError(Exit.USAGE, f"{file}: {error}") from error
        except OSError as error:
            raise CliError(Exit.USAGE, f"{file} cannot be read: {error.strerror}") from error
    if out.is_json:
        out.json("Replay", _json(recording, was, played))
    else:
        _show(recording, was, played, out)
    return Exit.OK


def _setting(policy: str, gpus: int | None, nodes: int | None, layout: str) -> Setting:
    if policy and policy not in POLICIES:
        allowed = ", ".join(POLICIES)
        raise CliError(Exit.USAGE, f"--policy: {policy!r} is none; allowed are: {allowed}")
    if gpus is not None and nodes is not None:
        raise CliError(Exit.USAGE, "--gpus and --nodes: give one of them")
    slices = []
    for entry in filter(None, layout.split(",")):
        name, _, number = entry.partition("=")
        if not name or not (number or "1").isdecimal():
            raise CliError(
                Exit.USAGE,
                f"--layout: {entry!r} is no slice: write profiles with their number, such as "
                "3g.40gb=1,1g.10gb=4",
            )
        slices.append((name, int(number or 1)))
    return Setting(policy, gpus, nodes, tuple(slices))


def _figures(played: Played) -> dict[str, float]:
    """Outcome in figures, as JSON has them: costs and ``strandedSlices`` are memory slices."""
    placed = [fate for fate in played.fates.values() if fate.placed is not None]
    waits = sorted(_waited(f, played) for f in played.fates.values() if f.waits)
    return {
        "accepted": len(placed),
        "waited": len(waits),
        "meanWaitSeconds": round(fmean(waits) if waits else 0.0, 3),
        "p95WaitSeconds": round(waits[ceil(0.95 * len(waits)) - 1] if waits else 0.0, 3),
        "strandedSlices": round(played.stranded, 4),
        "meanCost": round(fmean(fate.cost for fate in placed) if placed else 0.0, 4),
    }


def _waited(fate: Fate, played: Played) -> float:
    """Seconds until the pod was placed or gone, or the recording ended."""
    ends = (fate.placed, fate.left, played.end)
    end = next(t for t in ends if t is not None)
    return (end - fate.asked.t) / _SECOND if fate.waits else 0.0


@dataclass(frozen=True, slots=True)
class _Difference:
    """A pod placed in one play alone, or that waited a second more or less than in the other."""

    pod: str
    was: str
    is_now: str


def _differences(was: Played, played: Played) -> Iterator[_Difference]:
    for ask, before in was.fates.items():
        after = played.fates[ask]
        waited = abs(_waited(before, was) - _waited(after, played))
        if (before.placed is None) is not (after.placed is None) or waited >= 1:
            yield _Difference(before.asked.pod, _told(before, was), _told(after, played))


def _told(fate: Fate, played: Played) -> str:
    waited = _waited(fate, played)
    if fate.placed is not None:
        return f"placed after {_span(waited)}" if fate.waits else "placed at once"
    return f"{'left' if fate.left is not None else 'waits'} after {_span(waited)}"


def _moved(was: Played, played: Played) -> int:
    """Number of pods that were placed both times, on other devices the second time."""
    both = ((before, played.fates[ask]) for ask, before in was.fates.items())
    placed = ((b, a) for b, a in both if b.placed is not None and a.placed is not None)
    return sum((b.node, b.devices) != (a.node, a.devices) for b, a in placed)


def _span(seconds: float) -> str:
    if seconds < 60:  # noqa: PLR2004 - a minute
        return f"{seconds:.1f} s"
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min"  # noqa: PLR2004


_ROWS: dict[str, tuple[str, Callable[[float], str]]] = {
    "accepted": ("accepted", str),
    "waited": ("waited", str),
    "meanWaitSeconds": ("  on the mean", _span),
    "p95WaitSeconds": ("  19 of 20 at most", _span),
    "strandedSlices": ("stranded memory slices", "{:.2f}".format),
    "meanCost": ("cost of a pod to others", "{:.3f}".format),
}
"""Lines of the figures for people: their words, and how each is written."""


def _show(recording: Recording, was: Played, played: Played, out: Output) -> None:
    header = recording.header
    lines = (*recording.state, *recording.events)
    nodes = {line.node for line in lines if isinstance(line, NodeState)}
    what = f"{counted(len(was.fates), 'pod')} asked on {counted(len(nodes), 'node')}"
    out.line(f"{what} in {_span(was.end / _SECOND)} from {harmless(header.begun)} on")
    if header.dropped:
        out.line(out.odd(f"{counted(header.dropped, 'line')} before it were lost"))
    if recording.is_cut:
        out.line(out.odd("its last line is cut off, and left out"))
    out.line()
    before, after = _figures(was), _figures(played)
    rows = [(f, told(before[n]), told(after[n])) for n, (f, told) in _ROWS.items()]
    out.table(("", "RECORDED", "REPLAYED"), rows)
    out.line()
    if played.differs_at is None:
        out.line(out.good("each decision is as it was recorded"))
        return
    found = [*_differences(was, played)]
    since = _span(played.differs_at / _SECOND)
    out.line(
        f"from {since} on: {counted(len(found), 'pod')} fared differently, "
        f"{_moved(was, played)} were placed elsewhere"
    )
    if found:
        shown = [(harmless(d.pod, newlines=True), d.was, d.is_now) for d in found[:_SHOWN]]
        out.table(("POD", "RECORDED", "REPLAYED"), shown, indent="  ")
    if len(found) > _SHOWN:
        out.line(f"  and {len(found) - _SHOWN} more")


def _json(recording: Recording, was: Played, played: Played) -> dict[str, Any]:
    differs = played.differs_at
    return {
        "begun": recording.header.begun,
        "seconds": was.end / _SECOND,
        "pods": len(was.fates),
        "lostBefore": recording.header.dropped,
        "isCut": recording.is_cut,
        "recorded": _figures(was),
        "replayed": _figures(played),
        "differsAfterSeconds": None if differs is None else differs / _SECOND,
        "placedElsewhere": _moved(was, played),
        "differences": [
            {"pod": d.pod, "recorded": d.was, "replayed": d.is_now}
            for d in _differences(was, played)
        ],
    }
