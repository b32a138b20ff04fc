"""Shared libraries as the loader sees them: for which processor, and under which SONAME.

A program's loader looks for a library by the name in its DT_SONAME, whatever the file is called.
Links beside the file need not be there, or may be an older driver's. Source: elf(5).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

X86_64 = 62
AARCH64 = 183

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_DYNAMIC = struct.Struct("<qQ")
_IDENTITY = b"\x7fELF\x02\x01"  # 64 bits, little endian
_SHARED = 3
_LOAD = 1
_DYNAMIC_SEGMENT = 2
_MOST_SEGMENTS = 64
_MOST_DYNAMIC = 64 * 1024
_STRING_TABLE = 5
_SONAME = 14
_LONGEST_NAME = 256


@dataclass(frozen=True, slots=True)
class SharedLibrary:
    """A 64-bit library: ``machine`` is ELF's number of the processor, ``soname`` may be empty."""

    machine: int
    soname: str


@dataclass(frozen=True, slots=True)
class _Segment:
    kind: int
    offset: int
    address: int
    size: int


def read_library(path: Path) -> SharedLibrary | None:
    """Read a library's header; None for a file that is no 64-bit library, or is damaged."""
    try:
        with path.open("rb") as file:
            return _read(file)
    except (OSError, struct.error, UnicodeDecodeError):
        return None


def _read(file: BinaryIO) -> SharedLibrary | None:
    header = _HEADER.unpack(file.read(_HEADER.size))
    identity, kind, machine, table, entry_size, count = (
        header[0],
        header[1],
        header[2],
        header[5],
        header[9],
        header[10],
    )
    if not identity.startswith(_IDENTITY) or kind != _SHARED or entry_size < _SEGMENT.size:
        return None
    segments = list(_segments(file, table, size=entry_size, count=min(count, _MOST_SEGMENTS)))
    dynamic = next((s for s in segments if s.kind == _DYNAMIC_SEGMENT), None)
    if dynamic is None:
        return SharedLibrary(machine, "")
    file.seek(dynamic.offset)
    content = file.read(min(dynamic.size, _MOST_DYNAMIC))
    whole = len(content) // _DYNAMIC.size * _DYNAMIC.size
    tags = dict(reversed(list(_DYNAMIC.iter_unpack(content[:whole]))))
    if _SONAME not in tags or _STRING_TABLE not in tags:
        return SharedLibrary(machine, "")
    strings = _offset(segments, tags[_STRING_TABLE])
    file.seek(strings + tags[_SONAME])
    name = file.read(_LONGEST_NAME).partition(b"\0")[0].decode()
    return SharedLibrary(machine, name if "/" not in name else "")


def _segments(file: BinaryIO, table: int, *, size: int, count: int) -> Iterator[_Segment]:
    for number in range(count):
        file.seek(table + number * size)
        kind, _, offset, address, _, in_file, _, _ = _SEGMENT.unpack(file.read(_SEGMENT.size))
        yield _Segment(kind, offset, address, in_file)


def _offset(segments: list[_Segment], address: int) -> int:
    """Offset in the file of an address of the loaded library."""
    for segment in segments:
        if segment.kind == _LOAD and segment.address <= address < segment.address + segment.size:
            return address - segment.address + segment.offset
    return address
