"""What this plugin has made on the hardware, for which claim: on disk before the hardware changes.

One JSON file with a checksum, replaced atomically; the generation before it stays beside it. A
journal that cannot be read is set aside, never overwritten, and the one before it is used.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from cdi.files import sync_directory, write_durably
from dra.geometry import Placement
from dra.inventory import ClaimRef
from kubeletplugin.errors import HostError

VERSION = 1
_log = logging.getLogger(__name__)


class State(StrEnum):
    """How far a device has come.

    ``intent``: nothing on the hardware yet, or nothing known of it. ``gi-created`` and
    ``ci-created``: that far. ``prepared``: kubelet has been told, or may be. ``destroying``: to be
    removed, and the placement withheld until it is.
    """

    INTENT = "intent"
    GI_CREATED = "gi-created"
    CI_CREATED = "ci-created"
    PREPARED = "prepared"
    DESTROYING = "destroying"


@dataclass(frozen=True, slots=True)
class Entry:
    """One device of one claim. A whole GPU has neither profile nor placement nor ids.

    ``requests`` are the claim's base request names that it serves; ``total`` is how many devices
    the claim has on this node. ``boot_id`` is that of the boot in which the instance was made: ids
    mean nothing in another.
    """

    claim: ClaimRef
    device: str
    state: State
    gpu: str
    boot_id: str
    pool: str = ""
    requests: tuple[str, ...] = ()
    total: int = 1
    profile_id: int | None = None
    profile: str = ""
    placement: Placement | None = None
    gi_id: int | None = None
    ci_id: int | None = None
    mig_uuid: str = ""

    @property
    def key(self) -> tuple[str, str]:
        """Claim UID and device name."""
        return (self.claim.uid, self.device)

    def at(self, state: State, **changes: Any) -> Entry:
        """This entry in another state."""
        return replace(self, state=state, **changes)


class Journal:
    """The entries of this node. Thread-safe; a change is on disk when its method returns.

    Raises HostError from every change that could not be written; the entries are then as before.
    """

    def __init__(self, path: Path, *, on_change: Callable[[], None] | None = None) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._on_change = on_change
        self._generation, self._entries = _load(path)

    def entries(self) -> tuple[Entry, ...]:
        """All entries, in the order in which they were first written."""
        with self._lock:
            return tuple(self._entries.values())

    def of_claim(self, uid: str) -> tuple[Entry, ...]:
        """The entries of one claim."""
        return tuple(e for e in self.entries() if e.claim.uid == uid)

    def of_gpu(self, gpu: str) -> tuple[Entry, ...]:
        """The entries on one GPU, by UUID."""
        return tuple(e for e in self.entries() if e.gpu == gpu)

    def put(self, *entries: Entry) -> None:
        """Add or replace entries, all of them or none."""
        with self._lock:
            self._write(self._entries | {e.key: e for e in entries})

    def remove(self, *entries: Entry) -> None:
        """Forget entries; those that are not there are fine."""
        gone = {e.key for e in entries}
        with self._lock:
            if gone & self._entries.keys():
                self._write({k: e for k, e in self._entries.items() if k not in gone})

    def _write(self, entries: dict[tuple[str, str], Entry]) -> None:
        data = _encode(self._generation + 1, entries.values())
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            _keep_previous(self._path)
            write_durably(self._path, data, mode=0o600)
        except OSError as error:
            raise HostError(
                f"cannot write the journal {self._path}: {error.strerror or error}; "
                "free space there or make it writable"
            ) from error
        self._generation += 1
        self._entries = entries
        if self._on_change is not None:
            self._on_change()


def previous(path: Path) -> Path:
    """Where the generation before the current one is kept."""
    return path.with_name(path.name + ".previous")


def _keep_previous(path: Path) -> None:
    """Give the current file a second name, so that no moment is without a readable journal."""
    link = path.with_name(path.name + ".link")
    link.unlink(missing_ok=True)
    try:
        os.link(path, link)
    except FileNotFoundError:
        return
    link.replace(previous(path))


def _load(path: Path) -> tuple[int, dict[tuple[str, str], Entry]]:
    for candidate in (path, previous(path)):
        try:
            data = candidate.read_bytes()
        except FileNotFoundError:
            continue
        except OSError as error:
            raise HostError(
                f"cannot read the journal {candidate}: {error.strerror or error}"
            ) from error
        try:
            return _decode(data)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            aside = candidate.with_name(f"{candidate.name}.corrupt")
            _log.error("journal %s is not usable (%s); set aside as %s", candidate, error, aside)
            candidate.replace(aside)
            sync_directory(path.parent)
    return 0, {}


def _encode(generation: int, entries: Iterable[Entry]) -> bytes:
    body = {"generation": generation, "entries": [_entry_out(e) for e in entries]}
    record = {"version": VERSION, "checksum": _checksum(body), **body}
    return json.dumps(record, indent=1).encode()


def _decode(data: bytes) -> tuple[int, dict[tuple[str, str], Entry]]:
    """The generation and the entries.

    Raises:
        ValueError: not JSON, another version, a wrong checksum, or a bad entry.
    """
    record = json.loads(data)
    if record["version"] != VERSION:
        raise ValueError(f"version {record['version']!r} instead of {VERSION}")
    body = {"generation": record["generation"], "entries": record["entries"]}
    if _checksum(body) != record["checksum"]:
        raise ValueError("wrong checksum")
    entries = [_entry_in(e) for e in record["entries"]]
    return int(record["generation"]), {e.key: e for e in entries}


def _checksum(body: dict[str, Any]) -> str:
    text = json.dumps(body, sort_keys=True, separators=(",", ":"))
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()


def _entry_out(entry: Entry) -> dict[str, Any]:
    placement = entry.placement
    return {
        "namespace": entry.claim.namespace,
        "name": entry.claim.name,
        "uid": entry.claim.uid,
        "device": entry.device,
        "pool": entry.pool,
        "requests": list(entry.requests),
        "total": entry.total,
        "state": entry.state.value,
        "gpu": entry.gpu,
        "profileID": entry.profile_id,
        "profile": entry.profile,
        "placement": None if placement is None else [placement.start, placement.size],
        "gpuInstanceID": entry.gi_id,
        "computeInstanceID": entry.ci_id,
        "migUUID": entry.mig_uuid,
        "bootID": entry.boot_id,
    }


def _entry_in(fields: dict[str, Any]) -> Entry:
    placement = fields["placement"]
    return Entry(
        claim=ClaimRef(fields["namespace"], fields["name"], fields["uid"]),
        device=fields["device"],
        pool=fields["pool"],
        requests=tuple(fields["requests"]),
        total=fields["total"],
        state=State(fields["state"]),
        gpu=fields["gpu"],
        profile_id=fields["profileID"],
        profile=fields["profile"],
        placement=None if placement is None else Placement(*placement),
        gi_id=fields["gpuInstanceID"],
        ci_id=fields["computeInstanceID"],
        mig_uuid=fields["migUUID"],
        boot_id=fields["bootID"],
    )
