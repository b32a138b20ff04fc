"""The report of a check: a JSON file that can be attached to a bug report, and a screen of text.

It holds no secrets: no environment, no tokens, no command lines, no names of pods or claims. Docs
and tests take the fields from here (docs/check.md), and docs/hardware.md names for each belief the
item that shows it.
"""

from __future__ import annotations

import textwrap
import threading
from collections.abc import Iterator, Sequence
from enum import StrEnum
from statistics import median

import msgspec


class Item(StrEnum):
    """One thing that is looked at, by the name that the report and the docs have for it.

    Those of the first group are read; those of the second come from ``--create``.
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
    CONTAINER_RUNTIME = "container-runtime"
    KUBELET = "kubelet"
    OTHER_MANAGERS = "other-managers"
    CLUSTER = "cluster"

    TRIALS = "trials"
    TIMES = "times"


SCHEMA = 2


class Mark(StrEnum):
    """Meaning of an item for slices on this node."""

    OK = "ok"
    NOTE = "note"
    MISSING = "missing"


class _Record(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A part of the report."""


class Finding(_Record, frozen=True, kw_only=True):
    """One observation, and the remedy where something is missing."""

    item: Item
    mark: Mark
    text: str
    remedy: str = ""


class Versions(_Record, frozen=True, kw_only=True):
    """Versions of NVIDIA's driver, as each place tells them; empty where it tells none.

    ``mapped`` is the file of NVML that this process has loaded.
    """

    kernel_module: str = ""
    nvml: str = ""
    driver: str = ""
    cuda: str = ""
    mapped: str = ""
    on_disk: tuple[str, ...] = ()
    kernel: str = ""
    python: str = ""
    bindings: str = ""


class ComputeProfile(_Record, frozen=True, kw_only=True):
    """A compute-instance profile of a GPU instance."""

    enum: int
    id: int
    name: str
    slices: int
    multiprocessors: int
    most: int


class Profile(_Record, frozen=True, kw_only=True):
    """A GPU-instance profile. ``placements`` are start and size, ``remaining`` is -1 if unknown."""

    enum: int
    id: int
    name: str
    slices: int
    most: int
    memory_mib: int
    multiprocessors: int
    copy_engines: int
    decoders: int
    encoders: int
    jpeg_engines: int
    ofa_engines: int
    placements: tuple[tuple[int, int], ...]
    remaining: int = -1


class Instance(_Record, frozen=True, kw_only=True):
    """A GPU instance that is there. ``compute_instances`` are id and MIG UUID."""

    id: int
    profile_id: int
    start: int
    size: int
    compute_instances: tuple[tuple[int, str], ...] = ()
    compute_profiles: tuple[ComputeProfile, ...] = ()
    capability_minors: tuple[int, ...] = ()


class Gpu(_Record, frozen=True, kw_only=True):
    """A GPU. ``mig`` is ``on``, ``off`` or ``none``; ``errors`` are calls that it refused.

    ``processes`` is how many NVML names, -1 where it was not asked; ``events`` is NVML's mask.
    ``recovery_action``, ``fabric`` and ``compute_mode`` are the driver's words, empty where it says
    nothing, ``notes`` what else it says. ``unavailable`` is why the plugin would give nothing out.
    ``open_in`` are programs that have the GPU open, as far as they are seen.
    """

    index: int
    uuid: str = ""
    minor: int = -1
    product: str = ""
    pci_bus_id: str = ""
    pci_device_id: str = ""
    architecture: str = ""
    cuda_compute_capability: str = ""
    memory_mib: int = 0
    mig: str = "none"
    mig_pending: str = "none"
    mode_needs_reset: bool = False
    lost: bool = False
    processes: int = -1
    events: int = 0
    recovery_action: str = ""
    fabric: str = ""
    compute_mode: str = ""
    notes: tuple[str, ...] = ()
    unavailable: str = ""
    open_in: tuple[str, ...] = ()
    profiles: tuple[Profile, ...] = ()
    instances: tuple[Instance, ...] = ()
    errors: tuple[str, ...] = ()


class Trial(_Record, frozen=True, kw_only=True):
    """One slice that was made and removed; ``refused`` says why it was not made, or is empty."""

    profile: str
    start: int
    size: int
    round: int
    gpu_instance_id: int = -1
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


class Report(_Record, frozen=True, kw_only=True):
    """The whole report. ``facts`` are lists of words by item: paths, names, numbers."""

    schema: int = SCHEMA
    taken: str
    node: str = ""
    findings: tuple[Finding, ...] = ()
    versions: Versions = Versions()
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


def decode(data: bytes) -> Report:
    """A report from its JSON.

    Raises:
        msgspec.ValidationError: it is none, or one of another schema.
    """
    return msgspec.json.decode(data, type=Report)


class Stopwatch:
    """Hears of every call of a session. Thread-safe.

    Calls that failed are left out: how long a refusal takes says nothing of the work.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seconds: dict[str, list[float]] = {}

    def __call__(self, name: str, code: str, seconds: float) -> None:
        """Take down one call."""
        if code == "SUCCESS":
            with self._lock:
                self._seconds.setdefault(name, []).append(seconds)

    def times(self) -> dict[str, Times]:
        """Recorded times, by function name."""
        with self._lock:
            taken = {name: sorted(values) for name, values in self._seconds.items()}
        return {name: _times(values) for name, values in sorted(taken.items())}


def _times(seconds: list[float]) -> Times:
    shown = [round(s * 1000, 3) for s in (seconds[0], median(seconds), seconds[-1])]
    return Times(calls=len(seconds), min=shown[0], median=shown[1], max=shown[2])


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
    if report.trials:
        lines += ["", "made and removed:"]
        for name in dict.fromkeys(t.profile for t in report.trials):
            same = [t for t in report.trials if t.profile == name]
            lines.extend(_wrapped(f"  {name:<{_LABEL - 2}}", _what_came_of(same)))
    return "\n".join(lines) + "\n"


def _what_came_of(trials: Sequence[Trial]) -> str:
    """Outcome for a profile: times made, what it had, whether its UUID came again, refusals."""
    made = [t for t in trials if not t.refused]
    words = [f"{len(made)} of {len(trials)} times"]
    if made:
        words.append(f"{made[0].multiprocessors} multiprocessors, {made[0].memory_mib} MiB")
    if len(made) > 1:
        words.append("each with its own UUID" if len({t.uuid for t in made}) > 1 else "same UUID")
    return "; ".join([*words, *dict.fromkeys(t.refused for t in trials if t.refused)])


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
