"""Record of calls, so that a test can assert which of them reached the hardware.

Calls that change hardware are always recorded; all calls are while the machine asks for it.
"""

import os
from pathlib import Path

import msgspec


class Call(msgspec.Struct, frozen=True):
    """One finished call; `gpu` is a UUID, or empty for calls that concern no GPU."""

    function: str
    gpu: str
    code: int
    mutation: bool
    pid: int


class CallLog:
    """The records in a machine's directory: mutations.jsonl and, if wanted, calls.jsonl."""

    def __init__(self, directory: Path) -> None:
        self._mutations = directory / "mutations.jsonl"
        self._calls = directory / "calls.jsonl"

    def record(self, function: str, *, gpu: str, code: int, mutation: bool, wanted: bool) -> None:
        """Appends a call where it belongs."""
        if not (mutation or wanted):
            return
        line = msgspec.json.encode(Call(function, gpu, code, mutation, os.getpid())) + b"\n"
        if mutation:
            _append(self._mutations, line)
        if wanted:
            _append(self._calls, line)

    def mutations(self) -> list[Call]:
        """Calls that were made to change hardware, whatever they returned."""
        return _read(self._mutations)

    def calls(self) -> list[Call]:
        """All calls made while recording was on."""
        return _read(self._calls)


def _append(path: Path, line: bytes) -> None:
    # One write of one line in append mode is atomic among processes.
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        os.write(descriptor, line)
    finally:
        os.close(descriptor)


def _read(path: Path) -> list[Call]:
    if not path.exists():
        return []
    return [msgspec.json.decode(line, type=Call) for line in path.read_bytes().splitlines()]
