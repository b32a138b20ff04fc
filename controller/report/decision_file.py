"""A file of lines with bounded size, written by a thread of its own.

Half of the bound is for the file, half for its predecessor, which is called ``<name>.1``.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from pathlib import Path
from typing import BinaryIO

from controller import times

_log = logging.getLogger(__name__)


class DecisionFile:
    """Queue of lines for the file; lines that cannot be written are lost. Thread-safe.

    ``limit``: bytes of both files together. After a loss no line is taken before ``begin``.
    """

    def __init__(self, path: Path, limit: int) -> None:
        self.room = limit // 2
        """Upper bound on the bytes of one file."""
        self._path = path
        self._left = 0
        self._is_lost = False
        self._closing = threading.Event()
        self._queue: deque[tuple[bytes, bool]] = deque()
        self._thread = threading.Thread(target=self._run, name="decision log", daemon=True)
        self._thread.start()

    def begin(self, header: bytes) -> None:
        """Begin a new file with ``header``; the present file becomes the predecessor."""
        self._is_lost = False
        self._left = self.room - len(header)
        self._queue.append((header, True))

    def put(self, line: bytes) -> bool:
        """Queue a line; returns False if it is lost."""
        self._left -= len(line)
        if self._left < 0:
            self._is_lost = True
        if not self._is_lost:
            self._queue.append((line, False))
        return not self._is_lost

    @property
    def is_nearly_full(self) -> bool:
        """True if a new file is to be begun, so that the lines of one event fit into one file."""
        return self._left < self.room // 8

    def close(self) -> None:
        """Write the queued lines; waits for that for a bounded time."""
        self._closing.set()
        self._thread.join(times.DECISION_LOG_CLOSES)

    def _run(self) -> None:
        file: BinaryIO | None = None
        is_open = True
        while is_open:
            # This thread polls: to wake it would cost the deciding thread more than its lines do.
            is_open = not self._closing.wait(times.DECISION_LOG_WRITES)
            try:
                while self._queue:
                    line, begins = self._queue.popleft()
                    if begins:
                        file = self._next(file)
                    if file is not None:
                        file.write(line)
                if file is not None:
                    file.flush()
            except OSError as error:
                _log.warning("decisions are not recorded for a while: %s", error)
                self._is_lost = True
                file = None
        if file is not None:
            file.close()

    def _next(self, file: BinaryIO | None) -> BinaryIO:
        if file is not None:
            file.close()
        if self._path.exists():
            self._path.replace(self._path.with_name(f"{self._path.name}.1"))
        return self._path.open("wb")
