"""Injected faults: rules in a file beside the machine's state, which any process may write.

A rule matches calls of a function (a shell pattern, so "*" is all) on a GPU (UUID, index, or any),
skips the first `after` of them and then acts `times` times (0: always). Calls are counted across
processes, so that a process which crashed at the first call passes it after its restart.
"""

import fnmatch
import os
import signal
import time
from pathlib import Path
from threading import Lock
from typing import Literal
from uuid import uuid4

import msgspec

from api.decoding import decodable
from sim.nvml.cabi import RefusedError
from sim.nvml.state import locked, replace_file

Action = Literal["return", "no-effect", "delay", "hang", "crash-before", "crash-after"]
_POLL_SECONDS = 0.01


@decodable
class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """One rule; `code` is for "return", `seconds` for "delay".

    "no-effect" answers SUCCESS and does nothing; "hang" blocks until the rule is taken away;
    crashes are SIGKILL of the calling process, before or after the call takes effect.
    """

    function: str
    action: Action
    gpu: str | int | None = None
    after: int = 0
    times: int = 1
    code: int = 999
    seconds: float = 0.0
    id: str = msgspec.field(default_factory=lambda: uuid4().hex[:8])

    def matches(self, function: str, gpu: tuple[str, int] | None) -> bool:
        """True if the rule is about this call; `gpu` is UUID and index of the GPU called on."""
        about_gpu = self.gpu is None or (gpu is not None and self.gpu in gpu)
        return about_gpu and fnmatch.fnmatchcase(function, self.function)


class Faults:
    """The rules of one machine's directory."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "faults.json"
        self._name = str(self._path)
        self._counts = directory / "fault-counts.json"
        self._lock = directory / "faults.lock"
        self._mutex = Lock()
        self._seen: tuple[int, int] | None = None
        self._rules: list[Fault] = []

    def rules(self) -> list[Fault]:
        """The rules that are in force."""
        with self._mutex:
            try:
                stat = os.stat(self._name)  # noqa: PTH116 - at each call of NVML; a Path takes longer
            except FileNotFoundError:
                self._seen, self._rules = None, []
                return self._rules
            mark = (stat.st_ino, stat.st_mtime_ns)
            if mark != self._seen:
                self._rules = msgspec.json.decode(self._path.read_bytes(), type=list[Fault])
                self._seen = mark
            return self._rules

    def add(self, fault: Fault) -> None:
        """Puts a rule into force, counting its calls from now on."""
        with locked(self._lock):
            self._write([*(r for r in self.rules() if r.id != fault.id), fault])
            self._write_counts({k: v for k, v in self._read_counts().items() if k != fault.id})

    def remove(self, identifier: str | None = None) -> None:
        """Takes one rule away, or all of them; what hangs on it goes on."""
        with locked(self._lock):
            keep = [r for r in self.rules() if identifier is not None and r.id != identifier]
            self._write(keep)

    def seen(self, identifier: str) -> int:
        """Number of calls that have matched the rule since it was added."""
        return self._read_counts().get(identifier, 0)

    def due(self, function: str, gpu: tuple[str, int] | None) -> list[Fault]:
        """The rules that act on this call, which is counted."""
        matching = [r for r in self.rules() if r.matches(function, gpu)]
        if not matching:
            return []
        with locked(self._lock):
            counts = self._read_counts()
            for rule in matching:
                counts[rule.id] = counts.get(rule.id, 0) + 1
            self._write_counts(counts)
        return [
            r
            for r in matching
            if counts[r.id] > r.after and (r.times == 0 or counts[r.id] <= r.after + r.times)
        ]

    def wait_until_released(self, rule: Fault) -> None:
        """Blocks for as long as the rule is in force."""
        while any(r.id == rule.id for r in self.rules()):
            time.sleep(_POLL_SECONDS)

    def _write(self, rules: list[Fault]) -> None:
        replace_file(self._path, msgspec.json.encode(rules))

    def _read_counts(self) -> dict[str, int]:
        try:
            return msgspec.json.decode(self._counts.read_bytes(), type=dict[str, int])
        except FileNotFoundError:
            return {}

    def _write_counts(self, counts: dict[str, int]) -> None:
        replace_file(self._counts, msgspec.json.encode(counts))


def suffer(faults: Faults, due: list[Fault]) -> bool:
    """Lets the rules act that act before a call; true if the call must have no effect."""
    for rule in due:
        if rule.action == "delay":
            time.sleep(rule.seconds)
        elif rule.action == "hang":
            faults.wait_until_released(rule)
        elif rule.action == "crash-before":
            crash()
        elif rule.action == "return":
            raise RefusedError(rule.code)
    return any(rule.action == "no-effect" for rule in due)


def crash() -> None:
    """Ends this process as a power cut would: no handler, no flush."""
    os.kill(os.getpid(), signal.SIGKILL)
