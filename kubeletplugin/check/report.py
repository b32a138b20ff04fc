"""The report of a check: a JSON file that can be attached to a bug report, and a screen of text.

The report holds no secrets: no environment, tokens, command lines, or names of pods or claims.
docs/check.md describes the fields of this module. docs/hardware.md names, for each assumption
about hardware, the item of the report that confirms it.
"""

from __future__ import annotations

import textwrap
import threading
from collections.abc import Iterator, Sequence
from enum import StrEnum
from statistics import median
from typing import Any

import msgspec

from api.decoding import decodable


class Item(StrEnum):
    """Name of one subject of the check, in the report and in the docs.

    The first group is read; the second group comes from ``--create``.
    """

    KERNEL_MODULE = "kernel-module"
    NVML = "nvml"
    PERMISSION = "permission"
    PID_NAMESPACE = "pid-namespace"
    GPUS = "gpus"
    PROFILES = "profiles"
    CAPABILITIES = "capabilities"
    DEVICE_NODES = "device-nodes"
    LIBRARIES = "libraries"
    HOOK = "hook"
    CDI = "cdi"
    OTHER_MANAGERS = "other-managers"

    TRIALS = "trials"
    TIMES = "times"


SCHEMA = 3


class Mark(StrEnum):
    """Meaning of a finding for slices on this node.

    ``ok``: the item is as slices need it. ``note``: no hindrance to slices. ``missing``: without
    it no slice can be made.
    """

    OK = "ok"
    NOTE = "note"
    MISSING = "missing"


class _Record(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Base of the report's parts: JSON in camel case."""


class Finding(_Record, frozen=True, kw_only=True):
    """One observation. ``remedy``: empty if nothing is to be done."""

    item: Item
    mark: Mark
    text: str
    remedy: str = ""


class Instance(_Record, frozen=True, kw_only=True):
    """A GPU instance that is there.

    ``start``, ``size``: its placement. ``compute_instances``: id and MIG device's UUID of each.
    """

    id: int
    profile_id: int
    start: int
    size: int
    compute_instances: tuple[tuple[int, str], ...] = ()


class Gpu(_Record, frozen=True, kw_only=True):
    """A GPU.

    ``card``: the plugin's description, by the field names of ``nvml.gpus.Card``. ``unavailable``:
    why the plugin would give nothing out on the GPU; empty if it would. ``open_in``: programs that
    have the GPU open, as far as they can be seen.
    """

    uuid: str
    card: dict[str, Any]
    unavailable: str = ""
    open_in: tuple[str, ...] = ()
    instances: tuple[Instance, ...] = ()


class Trial(_Record, frozen=True, kw_only=True):
    """One attempt to make a slice, and to remove it again.

    ``start``, ``size``: placement that was asked for. ``refused``: why no slice was made; empty if
    one was. ``multiprocessors``, ``memory_mib``: of the slice; -1 if none was made.
    """

    profile: str
    start: int
    size: int
    round: int
    uuid: str = ""
    multiprocessors: int = -1
    memory_mib: int = -1
    refused: str = ""


class Times(_Record, frozen=True, kw_only=True):
    """Durations of the calls of one function, in milliseconds."""

    calls: int
    min: float
    median: float
    max: float


@decodable
class Report(_Record, frozen=True, kw_only=True):
    """The whole report.

    ``taken``: date and time. ``facts``: by item, texts with paths, names and numbers. ``versions``:
    of NVIDIA's driver and other software, by the place that tells each. ``times``: durations of
    NVML's functions, by name.
    """

    schema: int = SCHEMA
    taken: str
    node: str = ""
    findings: tuple[Finding, ...] = ()
    versions: dict[str, str] = {}
    gpus: tuple[Gpu, ...] = ()
    facts: dict[Item, tuple[str, ...]] = {}
    trials: tuple[Trial, ...] = ()
    times: dict[str, Times] = {}

    @property
    def works(self) -> bool:
        """True if nothing that slices need is missing."""
        return all(f.mark is not Mark.MISSING for f in self.findings)


def encode(report: Report) -> bytes:
    """The report's JSON."""
    return msgspec.json.format(msgspec.json.encode(report), indent=1)


class Stopwatch:
    """Record of the durations of a session's calls; the session calls it. Thread-safe.

    Failed calls are left out: the duration of a refusal tells nothing about that of the work.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seconds: dict[str, list[float]] = {}

    def __call__(self, name: str, code: str, seconds: float) -> None:
        """Note how long a call took that succeeded."""
        if code == "SUCCESS":
            with self._lock:
                self._seconds.setdefault(name, []).append(seconds)

    def times(self) -> dict[str, Times]:
        """Recorded times, by function name."""
        with self._lock:
            return {name: _times(sorted(taken)) for name, taken in sorted(self._seconds.items())}


def _times(seconds: list[float]) -> Times:
    shown = [round(s * 1000, 3) for s in (seconds[0], median(seconds), seconds[-1])]
    return Times(calls=len(seconds), min=shown[0], median=shown[1], max=shown[2])


class Notebook:
    """Findings and facts of a check that is under way, in order."""

    def __init__(self) -> None:
        self.findings: list[Finding] = []
        self.facts: dict[Item, tuple[str, ...]] = {}

    def ok(self, item: Item, text: str) -> None:
        """Record that a part is as slices need it."""
        self.findings.append(Finding(item=item, mark=Mark.OK, text=text))

    def note(self, item: Item, text: str, remedy: str = "") -> None:
        """Record an observation that is no hindrance to slices."""
        self.findings.append(Finding(item=item, mark=Mark.NOTE, text=text, remedy=remedy))

    def missing(self, item: Item, text: str, remedy: str) -> None:
        """Record that a part is missing without which no slice can be made."""
        self.findings.append(Finding(item=item, mark=Mark.MISSING, text=text, remedy=remedy))

    def refused(self, item: Item, error: Exception, remedy: str) -> None:
        """Record a missing part by the text of an error; ``remedy`` if the text has none."""
        text, _, own = str(error).partition("; ")
        self.missing(item, text, own or remedy)

    def fact(self, item: Item, *words: str) -> None:
        """Add facts about an item, which the report lists apart from the findings."""
        self.facts[item] = (*self.facts.get(item, ()), *words)


WIDTH = 100
_LABEL = 28
_MARKS = {Mark.OK: "ok", Mark.NOTE: "note", Mark.MISSING: "MISSING"}


def draw(report: Report) -> str:
    """The report as text for a screen: each finding with its remedy, and the trials' outcomes."""
    missing = [f for f in report.findings if f.mark is Mark.MISSING]
    where = f" on {report.node}" if report.node else ""
    verdict = (
        f"slices can be made{where}"
        if not missing
        else f"no slice can be made{where}: {len(missing)} of {len(report.findings)} are missing"
    )
    lines = [f"{verdict} ({report.taken})", ""]
    for finding in report.findings:
        label = f"{_MARKS[finding.mark]:<8} {finding.item}"
        lines.extend(_wrapped(f"{label:<{_LABEL}}", finding.text))
        if finding.remedy:
            lines.extend(_wrapped(" " * _LABEL, f"-> {finding.remedy}"))
    if report.trials:
        lines += ["", "made and removed:"]
        for name in dict.fromkeys(t.profile for t in report.trials):
            same = [t for t in report.trials if t.profile == name]
            lines.extend(_wrapped(f"  {name:<{_LABEL - 2}}", _what_came_of(same)))
    return "\n".join(lines) + "\n"


def _what_came_of(trials: Sequence[Trial]) -> str:
    """Outcome for a profile: number of slices made, their size, if UUIDs were new, refusals."""
    made = [t for t in trials if not t.refused]
    words = [f"{len(made)} of {len(trials)} times"]
    if made:
        words.append(f"{made[0].multiprocessors} multiprocessors, {made[0].memory_mib} MiB")
    if len(made) > 1:
        words.append("each with its own UUID" if len({t.uuid for t in made}) > 1 else "same UUID")
    return "; ".join([*words, *dict.fromkeys(t.refused for t in trials if t.refused)])


def _wrapped(label: str, text: str) -> Iterator[str]:
    yield from textwrap.wrap(
        text,
        WIDTH,
        initial_indent=label,
        subsequent_indent=" " * _LABEL,
        break_long_words=False,
        break_on_hyphens=False,
    )
