"""Runs functions in forked children of a process that has no threads, so that they may be killed.

The test's own process has threads (pytest-xdist's, gRPC's), and a fork of those is a gamble.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import traceback
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import IO, Any, Self, TypeVar

T = TypeVar("T")


class ChildError(AssertionError):
    """The function raised in the child; the text is the child's traceback."""


class Forks:
    """A process that forks; a child's result comes back, or the signal that killed it."""

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.communicate()

    def run(self, work: Callable[..., T], *args: Any, **more: Any) -> T:
        """The result of the work in a child.

        Raises:
            ChildError: it raised, or was killed.
        """
        signal, value, error = self._ask(partial(work, **more), args)
        if signal or error:
            raise ChildError(error or f"killed by signal {signal}")
        result: T = value
        return result

    def kill(self, work: Callable[..., Any], *args: Any) -> int:
        """The signal by which the child ended while it ran ``work(*args)``; 0: it came to the end.

        Raises:
            ChildError: it raised.
        """
        signal, _, error = self._ask(work, args)
        if error:
            raise ChildError(error)
        return signal

    def _ask(self, work: Callable[..., Any], args: tuple[Any, ...]) -> tuple[int, Any, str]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        pickle.dump((work, args), self._process.stdin)
        self._process.stdin.flush()
        answer: tuple[int, Any, str] = pickle.load(self._process.stdout)
        return answer


def serve(source: IO[bytes], sink: IO[bytes]) -> None:
    """Answer one request after the other until ``source`` ends."""
    while True:
        try:
            work, args = pickle.load(source)
        except EOFError:
            return
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reading)
            _work(work, args, writing)
        os.close(writing)
        with os.fdopen(reading, "rb") as pipe:
            said = pipe.read()
        _, status = os.waitpid(child, 0)
        value, error = pickle.loads(said) if said else (None, "")
        if os.WIFEXITED(status) and not said:
            error = f"ended with {status} and said nothing"
        signal = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        pickle.dump((signal, value, error), sink)
        sink.flush()


def _work(work: Callable[..., Any], args: tuple[Any, ...], writing: int) -> None:
    try:
        said = (work(*args), "")
    except BaseException:  # noqa: BLE001 - told to whoever asked
        said = (None, traceback.format_exc())
    with os.fdopen(writing, "wb") as pipe:
        pickle.dump(said, pipe)
    os._exit(0)


if __name__ == "__main__":
    import gc
    import importlib
    import logging

    import msgspec

    from api.mignode import MigNodeSpec, MigNodeStatus
    from sim.nvml.products import Product
    from sim.nvml.state import MachineState

    # Loaded once, not in every child: grpc's are those that it loads once there is a server.
    operations = ("tests.failures.interrupted.running", "tests.failures.interrupted.recovery")
    for module in (*operations, "grpc._server", "grpc._interceptor"):
        importlib.import_module(module)
    for kind in (MigNodeSpec, MigNodeStatus, MachineState, Product):
        msgspec.json.Decoder(kind)  # the first for a kind looks through all that it is made of
    logging.disable(logging.CRITICAL)
    # A collection in a child copies the pages of what is loaded here, and no child lives long.
    gc.collect()
    gc.freeze()
    gc.disable()
    serve(sys.stdin.buffer, sys.stdout.buffer)
