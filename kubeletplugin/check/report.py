"""The report of a check: one JSON file that can be attached to a bug report.

It holds no secrets: no environment, no tokens, no command lines, no names of pods or claims. Docs
and tests take the fields from here (docs/check.md).
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from kubeletplugin.check.items import Item

SCHEMA = 1


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
    profiles: tuple[Profile, ...] = ()
    instances: tuple[Instance, ...] = ()
    errors: tuple[str, ...] = ()


class Belief(_Record, frozen=True, kw_only=True):
    """Answer of this node to an open question; ``answer`` is ``open`` where it could not be."""

    item: Item
    answer: str
    detail: str = ""


class Trial(_Record, frozen=True, kw_only=True):
    """One slice that was made and removed.

    ``enum`` is that of the compute instance. ``refused`` is the code of what was not made, empty if
    all was.
    """

    profile: str
    start: int
    size: int
    round: int
    gpu_instance_id: int = -1
    compute_instance_id: int = -1
    enum: int = -1
    uuid: str = ""
    multiprocessors: int = -1
    memory_mib: int = -1
    advertised_multiprocessors: int = -1
    advertised_memory_mib: int = -1
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
    beliefs: tuple[Belief, ...] = ()
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
