"""A file of lines that never outgrows its bound, written by a thread of its own.

Half of the bound is for the file, half for the one before it, which is called ``<name>.1``. Each
begins with a header and the lines that are kept: whoever reads one needs no other.
"""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import BinaryIO, NamedTuple

from controller import times

_log = logging.getLogger(__name__)


class Entry(NamedTuple):
    """A line to be written, if there is one; it, or ``kept``, stands in later files under ``key``.

    Lines under the keys ``forget`` stand there no more. ``begins``: a header, and nothing before it
    counts.
    """

    line: bytes = b""
    key: str = ""
    kept: bytes = b""
    forget: tuple[str, ...] = ()
    begins: bool = False


class DecisionFile:
    """Lines are queued, and lost while they cannot be written. Thread-safe.

    ``limit`` is in bytes, of both files together. After a loss nothing is taken before a new
    beginning. ``end_of_state`` ends the lines that are kept.
    """

    def __init__(self, path: Path, limit: int, *, end_of_state: bytes) -> None:
        self._path = path
        self._half = limit // 2
        self._end_of_state = end_of_state
        self._arrived = threading.Condition()
        self._queue: list[Entry] = []
        self._queued = 0
        self._fails = True
        self._closing = False
        self._header = b""
        self._kept: dict[str, bytes] = {}
        self._file: BinaryIO | None = None
        self._size = 0
        self._thread = threading.Thread(target=self._run, name="decision log", daemon=True)
        self._thread.start()

    def put(self, entry: Entry) -> bool:
        """Queue an entry; False if it is lost."""
        size = len(entry.line) + len(entry.kept) + len(entry.key)
        with self._arrived:
            if entry.begins:
                self._fails = False
            if self._fails or self._queued + size > self._half:
                self._fails = True
                return False
            self._queue.append(entry)
            self._queued += size
            self._arrived.notify()
        return True

    def close(self) -> None:
        """Write what is queued; it takes a bounded time."""
        with self._arrived:
            self._closing = True
            self._arrived.notify()
        self._thread.join(times.DECISION_LOG_CLOSES)

    def _run(self) -> None:
        while True:
            with self._arrived:
                self._arrived.wait_for(lambda: self._queue or self._closing)
                entries, self._queue, self._queued = self._queue, [], 0
                ends = self._closing
            try:
                self._write(entries)
            except OSError as error:
                _log.warning("decisions are not recorded for a while: %s", error)
                self._lose()
            if ends:
                self._close()
                return

    def _lose(self) -> None:
        with self._arrived:
            self._fails, self._queue, self._queued = True, [], 0
        self._close()

    def _close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            try:
                file.close()
            except OSError as error:
                _log.debug("closed with an error: %s", error)

    def _write(self, entries: list[Entry]) -> None:
        """Write entries, into a new file where this one is full.

        Raises:
            OSError: they cannot be written, or a file has no room for what is kept.
        """
        lines: list[bytes] = []
        for entry in entries:
            if entry.begins:
                lines.clear()
                self._header = entry.line
                self._kept.clear()
                self._open([])
                continue
            if self._file is not None and entry.line:
                if self._size + len(entry.line) > self._half:
                    self._append(lines)
                    lines.clear()
                    self._open([*self._kept.values(), self._end_of_state], room=len(entry.line))
                lines.append(entry.line)
                self._size += len(entry.line)
            for key in entry.forget:
                self._kept.pop(key, None)
            if entry.key:
                self._kept[entry.key] = entry.kept or entry.line
        self._append(lines)

    def _append(self, lines: list[bytes]) -> None:
        if self._file is not None and lines:
            self._file.write(b"".join(lines))

    def _open(self, lines: list[bytes], *, room: int = 0) -> None:
        """Begin a new file with the header and ``lines``; the one before is kept.

        Raises:
            OSError: it cannot be made, or has no ``room`` for so many bytes more.
        """
        self._close()
        content = b"".join([self._header, *lines])
        if len(content) + room > self._half:
            raise OSError(
                f"the state alone has {len(content)} bytes, of which a file may have {self._half}: "
                "have --decision-log-mib larger"
            )
        if self._path.exists():
            self._path.replace(self._path.with_name(f"{self._path.name}.1"))
        self._file = self._path.open("wb", buffering=0)
        self._size = len(content)
        self._file.write(content)
