"""The journal's bytes: JSON with a version and a checksum.

The next version is read too: fields that this one does not know are kept, and a record that it
cannot understand, such as one in a state that only a newer version has, is quarantined alone: kept
as it is, its placement unavailable as far as it can be read.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, get_args

import msgspec

from api.nvidia import Interval
from dra.gpu.names import DeviceNameError, MigDevice, parse_device
from kubeletplugin.journal.entries import Entry, EntryKey, State

VERSION = 1

Record = Mapping[str, Any]
_CHECKSUM = b',"checksum":"sha256:'
_OWN = frozenset({"quarantined", "extra"})
_KNOWN = frozenset(f.name for f in fields(Entry)) - _OWN
_OUTLINE = frozenset(
    {"claim", "device", "gpu", "placement", "profile_id", "boot_id", "gi_id", "ci_id", "mig_uuid"}
)
_UNSURE = {"state": State.ORPHAN.value, "boot_id": ""}
_SHOWN_REASON = 300
_UID = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,126}[A-Za-z0-9])?")
_OBJECT_NAME = re.compile(r"[a-z0-9](?:[-.a-z0-9]{0,251}[a-z0-9])?")
_MOST_SLICES = 1000
_MOST_PROFILE_ID = 100_000
_MOST_ID = 2**32
_SHOWN = 80


@dataclass(frozen=True, slots=True)
class Contents:
    """Content of a journal file.

    ``rebuild`` is set while what was lost is still to be found again, ``unadopted`` while ready
    slices of a layout are.
    """

    generation: int = 0
    entries: tuple[Entry, ...] = ()
    rebuild: bool = False
    unadopted: bool = False


class _File(msgspec.Struct):
    version: Any
    generation: int
    entries: list[dict[str, Any]]
    rebuild: bool = False
    unadopted: bool = False


def encode(
    contents: Contents, texts: Mapping[EntryKey, tuple[Entry, bytes]] | None = None
) -> tuple[bytes, dict[EntryKey, tuple[Entry, bytes]]]:
    """The file's bytes, and the text of each entry, which need not be made again where it stays."""
    before = texts or {}
    made = {e.key: _text(e, before.get(e.key)) for e in contents.entries}
    entries = b",".join(text for _, text in made.values())
    head = msgspec.json.encode(
        {
            "version": VERSION,
            "generation": contents.generation,
            "rebuild": contents.rebuild,
            "unadopted": contents.unadopted,
        }
    )
    body = b'%b,"entries":[%b]' % (head[:-1], entries)
    return sealed(body), made


def sealed(body: bytes) -> bytes:
    """A file of these bytes, which are a JSON object without its closing brace."""
    return b'%b%b%b"}' % (body, _CHECKSUM, hashlib.sha256(body).hexdigest().encode())


def decode(data: bytes) -> Contents:
    """Read a journal from its bytes.

    Raises:
        ValueError: not a journal, of a version too far away, a wrong checksum, or a record of which
            not even claim, GPU and placement can be read.
    """
    body, mark, _ = data.rpartition(_CHECKSUM)
    if not mark or sealed(body) != data:
        raise ValueError("no journal with the right checksum")
    try:
        file = msgspec.json.decode(data, type=_File)
    except msgspec.DecodeError as error:
        raise ValueError(f"it is no journal: {error}") from error
    if file.version not in {VERSION, VERSION + 1}:
        raise ValueError(f"version {file.version!r}; this program reads {VERSION} to {VERSION + 1}")
    entries = {entry.key: entry for entry in map(_read, file.entries)}
    return Contents(file.generation, tuple(entries.values()), file.rebuild, file.unadopted)


def _text(entry: Entry, before: tuple[Entry, bytes] | None) -> tuple[Entry, bytes]:
    # The same object, as entries that are equal may differ in what a newer version wrote.
    if before is not None and before[0] is entry:
        return before
    if entry.quarantined:
        return entry, msgspec.json.encode(entry.extra)
    known = {k: v for k, v in msgspec.to_builtins(entry).items() if k not in _OWN}
    return entry, msgspec.json.encode({**entry.extra, **known})


def _read(raw: Record) -> Entry:
    """The record as an entry, quarantined if need be.

    Raises:
        ValueError: it has not even an outline.
    """
    try:
        entry = msgspec.convert({k: v for k, v in raw.items() if k in _KNOWN}, Entry)
        why = _unusable(entry) or _inconsistent(entry)
    except msgspec.ValidationError as error:
        why = str(error)
    if not why:
        return replace(entry, extra={k: v for k, v in raw.items() if k not in _KNOWN})
    try:
        outline = {k: v for k, v in raw.items() if k in _OUTLINE}
        entry = msgspec.convert({**_UNSURE, **outline}, Entry)
    except msgspec.ValidationError as error:
        raise ValueError(f"a record cannot be read: {error}") from error
    if useless := _unusable(entry):
        raise ValueError(f"a record cannot be read: {useless}")
    name = raw.get("profile")
    profile = name if isinstance(name, str) else ""
    return replace(entry, profile=profile, quarantined=why[:_SHOWN_REASON], extra=raw)


def _unusable(entry: Entry) -> str:
    """Reason why a record is useless, even to keep its placement; empty if it is not."""
    claim, place = entry.claim, entry.placement
    if not entry.gpu or not entry.gpu.isprintable():
        return f"{entry.gpu[:_SHOWN]!r} is no GPU's UUID"
    if not _UID.fullmatch(claim.uid):
        return f"{claim.uid[:_SHOWN]!r} is no claim's UID"
    if not all(map(_OBJECT_NAME.fullmatch, (claim.namespace, claim.name))):
        return f"no claim can be called {str(claim)[:_SHOWN]!r}"
    if place and not (0 <= place.start < _MOST_SLICES and 0 < place.size < _MOST_SLICES):
        return "its placement is none that a GPU can have"
    limits = (
        (entry.profile_id, _MOST_PROFILE_ID),
        (entry.gi_id, _MOST_ID),
        (entry.ci_id, _MOST_ID),
    )
    if any(n is not None and not 0 <= n < limit for n, limit in limits):
        return "its profile or an instance has an id that NVML cannot give"
    return ""


def _inconsistent(entry: Entry) -> str:
    """Reason why a record only keeps its placement, and cannot be acted on; empty if it can."""
    try:
        device = parse_device(entry.device)
    except DeviceNameError as error:
        return str(error)
    place = entry.placement
    named = (device.profile_id, device.start) if isinstance(device, MigDevice) else None
    if named != (None if place is None else (entry.profile_id, place.start)):
        return f"{entry.device} is recorded with profile {entry.profile_id} at {place}"
    if isinstance(device, MigDevice) and device.shared == (entry.share is None):
        kind = "a share without amounts" if device.shared else "a share, which its name is not"
        return f"{entry.device} is recorded as {kind}"
    if entry.view and place is not None:
        return f"{entry.device} is recorded as a view, which only a whole GPU can be"
    if entry.interval and (entry.interval not in get_args(Interval) or place or entry.view):
        return f"{entry.device} is recorded with a time slice that it cannot have"
    return ""
