"""Messages between a caller and the process that evaluates, and what the latter may take.

The messages are frames with JSON on two pipes.
"""

from __future__ import annotations

import os
from typing import TypeVar

import msgspec

from dra.cel.questions import Answer, Job

SECONDS = 0.25
"""CPU time for one question: a selector with those of its class, on the devices of one kind of GPU
or on 128 GPUs. Usual ones take some hundred microseconds."""

MEBIBYTES = 64
"""Memory for one question, besides what the evaluating process takes at its start."""

KEPT_MEBIBYTES = 24
"""Growth of a worker's memory at which the worker is replaced: compiled expressions stay in it, and
the runtime leaks a little."""

NICENESS = 10
"""Niceness of the workers: the process that decides goes first."""


_LENGTH = 4

M = TypeVar("M", bound=msgspec.Struct)


class Call(msgspec.Struct, frozen=True):
    """A job, by a number that the reply has too."""

    number: int
    job: Job


class Reply(msgspec.Struct, frozen=True, omit_defaults=True):
    """An answer; or how the worker ended that had the job: ``time`` or ``memory``.

    ``number`` 0 is of a worker that ended without a job, or while it read one. ``leaves``: this
    worker takes no other job.
    """

    number: int
    answer: Answer | None = None
    ended: str = ""
    leaves: bool = False


class EndError(Exception):
    """The other side has closed its pipe."""


def send(fd: int, message: msgspec.Struct) -> None:
    """Write a message. Raises OSError."""
    body = msgspec.json.encode(message)
    left = memoryview(len(body).to_bytes(_LENGTH, "big") + body)
    while left:
        left = left[os.write(fd, left) :]


def receive(fd: int, kind: type[M]) -> M:
    """Read a message, and not a byte more.

    Raises:
        EndError: there is none any more.
        msgspec.DecodeError: what was read is no such message.
    """
    size = int.from_bytes(_exactly(fd, _LENGTH), "big")
    return msgspec.json.decode(_exactly(fd, size), type=kind)


def _exactly(fd: int, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        part = os.read(fd, size - len(parts))
        if not part:
            raise EndError
        parts += part
    return bytes(parts)
