"""Digest of a node's files, by which it is known whether a step has changed anything."""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from tests.helpers.folders import mounts_below

_NEW = re.compile(rb"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|[0-9a-f]{64}")
_TIMES = re.compile(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")
_TEMPORARY = re.compile(rb"\.[a-z0-9_]{8}\.tmp")
_PROCESS = re.compile(rb'(?<=/clients/)\d+|(?<="pid":)\d+')


class Disk:
    """The node's folder, of which only files that have changed are read again."""

    def __init__(self, root: Path) -> None:
        self._root = str(root)
        self._digest = ""
        self._marks: dict[str, tuple[int, ...]] = {}
        self._texts: dict[str, tuple[bytes, list[bytes]]] = {}

    def digest(self) -> str:
        """A digest of mounts and files, but for logs of the simulator and its /proc's dead links.

        It is without times, and without names and numbers that are new in every run.
        """
        marks = dict(_files(self._root))
        marks |= {f"{path}/": () for path in mounts_below(Path(self._root))}
        if marks == self._marks:
            return self._digest
        seen, digest = dict[bytes, bytes](), hashlib.sha256()
        for path in sorted(marks):
            if marks[path] != self._marks.get(path):
                self._texts[path] = _read(path, self._root)
            text, new = self._texts[path]
            numbers = (seen.setdefault(each, b"%d" % len(seen)) for each in new)
            digest.update(text + b" ".join(numbers) + b"\0")
        self._marks, self._digest = marks, digest.hexdigest()
        return self._digest


def disk(root: str) -> str:
    """The digest of the node's folder."""
    return Disk(Path(root)).digest()


def _read(path: str, root: str) -> tuple[bytes, list[bytes]]:
    """Name and content of a file, and in their order what was taken out of them as new."""
    content = b"" if path.endswith("/") else Path(path).read_bytes()  # else it is a mount
    return _without_new(path.removeprefix(root).encode(), content)


@lru_cache(maxsize=256)  # most files are the same after each step
def _without_new(path: bytes, content: bytes) -> tuple[bytes, list[bytes]]:
    name, content = _TEMPORARY.sub(b".tmp", path), content.replace(b"\0", b"")
    text = _PROCESS.sub(b"", _TIMES.sub(b"", name + b"\0" + content + b"\0"))
    return _NEW.sub(b"<>", text), _NEW.findall(text)


def _files(folder: str) -> Iterator[tuple[str, tuple[int, ...]]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield from _files(entry.path)
            elif not entry.name.endswith((".jsonl", ".lock")):
                with suppress(FileNotFoundError):
                    found = entry.stat()
                    if stat.S_ISREG(found.st_mode):
                        yield entry.path, (found.st_ino, found.st_size, found.st_mtime_ns)
