"""Messages between a caller and the process that evaluates, and what the latter may take.

They go as JSON over two pipes, in the frames of multiprocessing's connections.
"""

from __future__ import annotations

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
