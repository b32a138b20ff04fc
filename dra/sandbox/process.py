"""Process that evaluates selectors, as its callers see it, and the limits on it.

Messages go as JSON over two pipes, in the frames of multiprocessing's connections.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
from multiprocessing.connection import Connection
from pathlib import Path

import msgspec

from api.decoding import decodable
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
"""Niceness of the workers: the process that makes decisions goes first."""


@decodable
class Call(msgspec.Struct, frozen=True):
    """A job and its number, which the reply repeats."""

    number: int
    job: Job


@decodable
class Reply(msgspec.Struct, frozen=True, omit_defaults=True):
    """Reply to a call: an answer, or how the worker with the job ended.

    ``number``: that of the call; 0 if the worker ended without a job, or while it read one.
    ``answer``: None if the worker ended. ``ended``: the lack that ended it, ``time`` or ``memory``;
    empty if it did not end. ``leaves``: this worker takes no other job.
    """

    number: int
    answer: Answer | None = None
    ended: str = ""
    leaves: bool = False


_log = logging.getLogger(__name__)

PATIENCE_SECONDS = 60.0
"""Real time for an answer. CPU time is limited to much less: only a slow machine needs longer."""

_ROOT = Path(__file__).resolve().parents[2]
_PASSED_ON = ("LD_LIBRARY_PATH", "PATH")


class SandboxError(Exception):
    """There is no answer now: the process could not be started, or was ended by somebody."""


class Sandbox:
    """Evaluates in another process, which has limits. Not thread-safe; ``answer`` blocks.

    The process is started when it is needed. It inherits no open files, and next to nothing of the
    environment.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._calls: Connection | None = None
        self._replies: Connection | None = None
        self._number = 0
        self._answered = 0

    def answer(self, job: Job) -> Answer:
        """The answer to ``job``; it is ``costly`` if the job takes too much.

        Raises:
            SandboxError: there is no answer now.
        """
        fresh = self._answered == 0
        reply = self._ask(job)
        if reply.ended == "memory" and not fresh:
            reply = self._ask(job)  # memory of earlier jobs may have been in the way
        if reply.answer is not None:
            return reply.answer
        return Answer(error=_TOO_MUCH[reply.ended], costly=True, cost=SECONDS)

    def stop(self) -> None:
        """Kill the process, so that an ``answer`` that blocks raises. From any thread."""
        if self._process is not None:
            with contextlib.suppress(OSError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def close(self) -> None:
        """End the process. Idempotent; the next ``answer`` starts another."""
        self.stop()
        process, self._process = self._process, None
        for pipe in (self._calls, self._replies):
            if pipe is not None:
                pipe.close()
        self._calls = self._replies = None
        if process is not None:
            process.wait()

    def _ask(self, job: Job, *, tries: int = 3) -> Reply:
        self._number += 1
        try:
            calls, replies = self._pipes()
            calls.send_bytes(msgspec.json.encode(Call(self._number, job)))
            while True:
                if not replies.poll(PATIENCE_SECONDS):
                    raise TimeoutError(f"no answer within {PATIENCE_SECONDS:.0f} s")
                reply = msgspec.json.decode(replies.recv_bytes(), type=Reply)
                if reply.leaves:
                    self._answered = 0
                if reply.number == self._number:
                    break
                if reply.ended and tries > 1:  # a worker that may have been reading the request
                    self.close()
                    return self._ask(job, tries=tries - 1)
        except (OSError, EOFError, msgspec.MsgspecError) as error:
            self.close()
            raise SandboxError(
                f"selectors cannot be evaluated: the process for it has failed ({error!r})"
            ) from error
        if not reply.leaves:
            self._answered += 1
        return reply

    def _pipes(self) -> tuple[Connection, Connection]:
        """The pipes for calls and for replies of the process, which is started if need be."""
        process, calls, replies = self._process, self._calls, self._replies
        if process and calls and replies and process.poll() is None:
            return calls, replies
        self.close()
        self._answered = 0
        environment = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
        (stdin, writing), (reading, stdout) = os.pipe(), os.pipe()
        self._calls = calls = Connection(writing, readable=False)
        self._replies = replies = Connection(reading, writable=False)
        try:
            self._process = subprocess.Popen(
                # -P: nothing is imported from wherever somebody calls kubectl mig.
                [sys.executable, "-P", "-m", "dra.sandbox.worker"],
                stdin=stdin,
                stdout=stdout,
                env={**environment, "PYTHONPATH": str(_ROOT)},
                start_new_session=True,
            )
        finally:
            os.close(stdin)
            os.close(stdout)
        return calls, replies


_TOO_MUCH = {
    "time": f"it takes more than {SECONDS:g} s of CPU time to evaluate: compare attributes "
    "as they are, without loops over lists that the selector makes itself",
    "memory": f"it takes more than {MEBIBYTES} MiB of memory to evaluate, or makes the CEL "
    "runtime fail: compare attributes as they are, without replace(), join() or + of "
    "long texts, and without optionals in lists or maps",
}
