"""Shared libraries that hold nothing but their name: what a program reads to find the SONAME."""

import platform
import struct

_MACHINES = {"x86_64": 62, "aarch64": 183}
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_DYNAMIC = struct.Struct("<qQ")
_SHARED, _LOAD, _DYNAMIC_SEGMENT = 3, 1, 2
_STRING_TABLE, _STRING_SIZE, _SONAME = 5, 10, 14


def empty_library(soname: str) -> bytes:
    """A 64-bit ELF library for this machine's processor, without symbols."""
    strings = b"\0" + soname.encode() + b"\0"
    table = _HEADER.size + 2 * _SEGMENT.size
    entries = 4
    names = table + entries * _DYNAMIC.size
    size = names + len(strings)
    dynamic = b"".join(
        _DYNAMIC.pack(tag, value)
        for tag, value in (
            (_SONAME, 1),
            (_STRING_TABLE, names),
            (_STRING_SIZE, len(strings)),
            (0, 0),
        )
    )
    header = _HEADER.pack(
        b"\x7fELF\x02\x01\x01",
        _SHARED,
        _MACHINES.get(platform.machine(), _MACHINES["x86_64"]),
        1,
        0,
        _HEADER.size,
        0,
        0,
        _HEADER.size,
        _SEGMENT.size,
        2,
        0,
        0,
        0,
    )
    whole = _SEGMENT.pack(_LOAD, 4, 0, 0, 0, size, size, 4096)
    part = _SEGMENT.pack(_DYNAMIC_SEGMENT, 4, table, table, table, len(dynamic), len(dynamic), 8)
    return header + whole + part + dynamic + strings
