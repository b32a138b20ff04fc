"""The loader's cache, ``/etc/ld.so.cache``, as ldconfig writes it.

Two forms: today's alone, or behind the one of before glibc 2.2. Source: glibc, sysdeps/generic/
dl-cache.h. Byte order is the machine's; NVIDIA's machines are little endian.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

_OLD = b"ld.so-1.7.0"
_OLD_HEADER = struct.Struct("<11sxI")
_OLD_ENTRY_SIZE = 12
_NEW = b"glibc-ld.so.cache1.1"
_NEW_HEADER = struct.Struct("<20sII20x")
_NEW_ENTRY = struct.Struct("<iIIIQ")
_ALIGNMENT = 8
_LONGEST_PATH = 4096


def cached_paths(data: bytes, *, prefixes: tuple[str, ...]) -> list[str]:
    """Paths of the cached libraries whose file name begins so, in the cache's order.

    A cache that is damaged, or of another form, has none.
    """
    try:
        return [path for path in _paths(data) if path.rpartition("/")[2].startswith(prefixes)]
    except struct.error:
        return []


def _paths(data: bytes) -> Iterator[str]:
    start = 0
    if data.startswith(_OLD):
        _, count = _OLD_HEADER.unpack_from(data)
        start = _OLD_HEADER.size + count * _OLD_ENTRY_SIZE
        start += -start % _ALIGNMENT
    magic, count, _ = _NEW_HEADER.unpack_from(data, start)
    if magic != _NEW:
        return
    table = start + _NEW_HEADER.size
    for number in range(count):
        _, _, value, _, _ = _NEW_ENTRY.unpack_from(data, table + number * _NEW_ENTRY.size)
        begin = start + value
        end = data.find(b"\0", begin, begin + _LONGEST_PATH)
        if end > begin:
            yield data[begin:end].decode(errors="replace")
