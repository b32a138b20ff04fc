"""The journal's bytes: JSON with a version and a checksum, readable one version either way.

Fields that this version does not know are kept. A record that it cannot understand, such as one in
a state that only a newer version has, is quarantined alone: kept as it is, its placement
unavailable as far as it can be read.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from dra.gpu.geometry import Placement
from dra.gpu.inventory import ClaimRef
from dra.gpu.shares import Share
from kubeletplugin.journal.entries import ARRIVING, HELD, Entry, MpsLimits, State
from kubeletplugin.journal.recordchecks import inconsistent, unusable

VERSION = 2
"""1 had no ``note``, no ``adopted``, and a checksum of ``generation`` and ``entries`` only."""
_OLDEST = 1

EntryKey = tuple[str, str]
Record = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Contents:
    """Content of a journal file.

    ``unread`` are records of which not even claim, GPU and placement can be read. ``rebuild`` is
    set while what was lost is still to be found again, ``unadopted`` while ready slices of a layout
    are.
    """

    generation: int = 0
    entries: tuple[Entry, ...] = ()
    unread: tuple[Record, ...] = ()
    rebuild: bool = False
    unadopted: bool = False


class _Share(msgspec.Struct, rename="camel"):
    memory_mib: int = msgspec.field(name="memoryMiB")
    cores: int
    tenant: str


class _Fields(msgspec.Struct, rename="camel"):
    namespace: str
    name: str
    uid: str
    device: str
    gpu: str
    state: str
    placement: tuple[int, int] | None
    profile: str
    profile_id: int | None = msgspec.field(name="profileID")
    gpu_instance_id: int | None = msgspec.field(name="gpuInstanceID")
    compute_instance_id: int | None = msgspec.field(name="computeInstanceID")
    mig_uuid: str = msgspec.field(name="migUUID")
    boot_id: str = msgspec.field(name="bootID")
    pool: str = ""
    requests: tuple[str, ...] = ()
    total: int = 1
    note: str = ""
    adopted: bool = False
    wiped: bool = False
    view: bool = False
    interval: str = ""
    share_id: str = msgspec.field(default="", name="shareID")
    share: _Share | None = None
    mps: tuple[int | None, int | None] | None = None
    told: bool | msgspec.UnsetType = msgspec.UNSET
    ahead: bool = False
    idle: bool = False
    layout: bool = False
    files: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET


_KNOWN = frozenset(f.encode_name for f in msgspec.structs.fields(_Fields))
_OUTLINE = (
    *("namespace", "name", "uid", "device", "gpu", "placement", "profileID", "bootID"),
    *("gpuInstanceID", "computeInstanceID", "migUUID"),
)
_WORDS = {State.LEFTOVER: "reclaiming"}
"""Words of the file that are not the state's own: earlier versions read and write them so."""
_STATES = {_WORDS.get(state, state.value): state for state in State}
_SHOWN_REASON = 300
_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"))
_UNSURE = {
    "state": State.ORPHAN.value,
    "profile": "",
    "bootID": "",
    "migUUID": "",
    "gpuInstanceID": None,
    "computeInstanceID": None,
}


class Encoder:
    """Encodes journals, one after the other; entries that stay are not encoded again.

    For one thread at a time.
    """

    def __init__(self) -> None:
        self._texts: dict[EntryKey, tuple[Entry, str]] = {}

    def encode(self, contents: Contents) -> bytes:
        """The file's bytes."""
        self._texts = {e.key: (e, self._text(e)) for e in contents.entries}
        entries = ",".join(
            [*(text for _, text in self._texts.values()), *map(_canonical, contents.unread)]
        )
        rest = {
            "generation": contents.generation,
            "rebuild": contents.rebuild,
            **({"unadopted": True} if contents.unadopted else {}),
            "version": VERSION,
        }
        # As all of it would be encoded at once: the keys are in their order.
        after = msgspec.json.encode(rest, order="sorted").decode()[1:]  # numbers and truths alone
        text = f'{{"entries":[{entries}],{after}'
        return f'{text[:-1]},"checksum":"{_digest(text)}"}}'.encode()

    def _text(self, entry: Entry) -> str:
        before, text = self._texts.get(entry.key, (None, ""))
        # The same object, as entries that are equal may differ in what a newer version wrote.
        return text if before is entry else _text(entry)


def encode(contents: Contents) -> bytes:
    """The file's bytes."""
    return Encoder().encode(contents)


def decode(data: bytes) -> Contents:
    """Read a journal from its bytes.

    Raises:
        ValueError: not a journal, of a version too far away, or a wrong checksum.
    """
    record = json.loads(data)
    if not isinstance(record, dict) or not isinstance(record.get("entries"), list):
        raise ValueError("it is no journal")  # noqa: TRY004 - as for any bad content
    version = record.get("version")
    if not isinstance(version, int) or not _OLDEST <= version <= VERSION + 1:
        raise ValueError(f"version {version!r}; this program reads {_OLDEST} to {VERSION + 1}")
    body = {k: v for k, v in record.items() if k != "checksum"}
    if version == 1:
        body = {k: body.get(k) for k in ("generation", "entries")}
    if _checksum(body) != record.get("checksum"):
        raise ValueError("wrong checksum")
    entries: dict[EntryKey, Entry] = {}
    unread: list[Record] = []
    for raw in record["entries"]:
        entry = _read(raw)
        if entry is not None:
            entries[entry.key] = entry
        else:
            unread.append(raw)
    generation = record.get("generation")
    if not isinstance(generation, int):
        raise ValueError(f"generation {generation!r}")  # noqa: TRY004 - as for any bad content
    return Contents(
        generation=generation,
        entries=tuple(entries.values()),
        unread=tuple(unread),
        rebuild=bool(record.get("rebuild")),
        unadopted=bool(record.get("unadopted")),
    )


def _read(raw: Any) -> Entry | None:
    """The record as an entry, quarantined if need be; None if it has not even an outline."""
    try:
        fields = msgspec.convert(raw, _Fields)
    except msgspec.ValidationError as error:
        return _outline(raw, str(error))
    if fields.state not in _STATES:
        return _outline(raw, f"state {fields.state!r} is not known to this version")
    entry = _entry(fields, raw)
    if why := unusable(entry) or inconsistent(entry):
        return _outline(raw, why)
    return entry


def _outline(raw: Any, why: str) -> Entry | None:
    """The record as an orphan: its claim is refused, its placement unavailable."""
    if not isinstance(raw, dict):
        return None
    outline = {k: raw[k] for k in _OUTLINE if k in raw}
    if isinstance(raw.get("profile"), str):
        outline["profile"] = raw["profile"]
    try:
        fields = msgspec.convert({**_UNSURE, **outline}, _Fields)
    except msgspec.ValidationError:
        return None
    entry = _entry(fields, raw)
    return None if unusable(entry) else replace(entry, quarantined=why[:_SHOWN_REASON])


def _entry(fields: _Fields, raw: Record) -> Entry:
    placement = fields.placement
    return Entry(
        claim=ClaimRef(fields.namespace, fields.name, fields.uid),
        device=fields.device,
        pool=fields.pool,
        requests=fields.requests,
        total=fields.total,
        state=_STATES[fields.state],
        gpu=fields.gpu,
        profile_id=fields.profile_id,
        profile=fields.profile,
        placement=None if placement is None else Placement(*placement),
        gi_id=fields.gpu_instance_id,
        ci_id=fields.compute_instance_id,
        mig_uuid=fields.mig_uuid,
        boot_id=fields.boot_id,
        note=fields.note,
        adopted=fields.adopted,
        wiped=fields.wiped,
        view=fields.view,
        interval=fields.interval,
        share_id=fields.share_id,
        share=None
        if (share := fields.share) is None
        else Share(share.memory_mib, share.cores, share.tenant),
        mps=None if fields.mps is None else MpsLimits(*fields.mps),
        told=fields.told is True and _STATES[fields.state] not in HELD,
        ahead=fields.ahead and _STATES[fields.state] in ARRIVING,
        idle=fields.idle and _STATES[fields.state] is State.CI_DESTROYED,
        layout=fields.layout,
        files=fields.files or (),
        extra=dict(raw),
    )


def _text(entry: Entry) -> str:
    """The canonical text of an entry's record."""
    if entry.quarantined:
        return _canonical(entry.extra)
    fields = _fields(entry)
    newer = {k: v for k, v in entry.extra.items() if k not in _KNOWN}
    if not newer:
        encoded = msgspec.json.encode(fields, order="sorted")
        if encoded.isascii() and b"\x7f" not in encoded:  # which are not escaped in it
            return encoded.decode()
    known: Record = msgspec.to_builtins(fields)
    return _canonical({**newer, **known})


def _fields(entry: Entry) -> _Fields:
    placement = entry.placement
    return _Fields(
        namespace=entry.claim.namespace,
        name=entry.claim.name,
        uid=entry.claim.uid,
        device=entry.device,
        pool=entry.pool,
        requests=entry.requests,
        total=entry.total,
        state=_WORDS.get(entry.state, entry.state.value),
        gpu=entry.gpu,
        profile_id=entry.profile_id,
        profile=entry.profile,
        placement=None if placement is None else (placement.start, placement.size),
        gpu_instance_id=entry.gi_id,
        compute_instance_id=entry.ci_id,
        mig_uuid=entry.mig_uuid,
        boot_id=entry.boot_id,
        note=entry.note,
        adopted=entry.adopted,
        wiped=entry.wiped,
        view=entry.view,
        interval=entry.interval,
        share_id=entry.share_id,
        share=None
        if (share := entry.share) is None
        else _Share(memory_mib=share.memory_mib, cores=share.cores, tenant=share.tenant),
        mps=entry.mps,
        told=entry.told or msgspec.UNSET,
        ahead=entry.ahead,
        idle=entry.idle,
        layout=entry.layout,
        files=entry.files or msgspec.UNSET,
    )


def _checksum(body: Record) -> str:
    return _digest(_canonical(body))


def _canonical(body: Record) -> str:
    return _CANONICAL.encode(body)


def _digest(text: str) -> str:
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()
