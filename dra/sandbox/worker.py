"""Process that evaluates selectors: a keeper, which forks workers, and one worker at a time.

``python -m dra.sandbox.worker`` reads requests from standard input and writes replies to standard
output, one after the other. The kernel ends a worker that takes too much: by a timer of CPU time,
and by refusing memory, which neither Python nor the CEL runtime survives. The keeper then replies
in the worker's place and forks the next one. That takes a few milliseconds, as everything is loaded
already. Before its first request a worker gives up all rights that computing does not need.
"""

from __future__ import annotations

import contextlib
import gc
import mmap
import os
import resource
import signal
import struct
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path

import msgspec

from dra.cel.questions import Answer, SelectorError
from dra.cel.selectors import Selectors
from dra.sandbox import process
from dra.sandbox.confinement import confine
from dra.sandbox.process import Call, Reply

_IN, _OUT = 0, 1
_END, _LEAVE, _NO_MEMORY = 0, 3, 4
_BAD_ALLOC = "std::bad_alloc"
_NUMBER = struct.Struct("q")
_PAGE = resource.getpagesize()
_STATM_BYTES = 200
_encode, _decode = msgspec.json.encode, msgspec.json.decode


def main() -> int:
    """Work until standard input ends."""
    selectors = Selectors()
    os.nice(process.NICENESS)
    with contextlib.suppress(OSError):  # the OOM killer takes this process first
        Path("/proc/self/oom_score_adj").write_text("1000")
    if not _can_confine():
        print("selectors are evaluated without seccomp, which this kernel lacks", file=sys.stderr)  # noqa: T201
    gc.freeze()
    current = mmap.mmap(-1, _NUMBER.size)
    calls, replies = Connection(_IN, writable=False), Connection(_OUT, readable=False)
    while True:
        _NUMBER.pack_into(current, 0, 0)
        pid = os.fork()
        if not pid:
            os._exit(_work(selectors, calls, replies, current))
        _, status = os.waitpid(pid, 0)
        code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else None
        if code == _END:
            return 0
        (number,) = _NUMBER.unpack_from(current)
        if code != _LEAVE:
            in_time = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGPROF
            ended = "time" if in_time else "memory"
            try:
                replies.send_bytes(_encode(Reply(number, ended=ended, leaves=True)))
            except BrokenPipeError:  # nobody is interested any more
                return 0


def _can_confine() -> bool:
    """True if a worker can be confined; asked of another process, as that is for good."""
    pid = os.fork()
    if not pid:
        os._exit(not confine())
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def _work(selectors: Selectors, calls: Connection, replies: Connection, current: mmap.mmap) -> int:
    """Answer until there is nothing more to answer; returns the exit status."""
    statm = _limit()
    most = _resident(statm) + process.KEPT_MEBIBYTES * 2**20 // _PAGE
    confine()
    try:
        while True:
            request = _decode(calls.recv_bytes(), type=Call)
            _NUMBER.pack_into(current, 0, request.number)
            signal.setitimer(signal.ITIMER_PROF, process.SECONDS)
            began = time.process_time()
            answer = _answer(selectors, request)
            cost = time.process_time() - began
            signal.setitimer(signal.ITIMER_PROF, 0)
            leaves = _resident(statm) > most
            answer = msgspec.structs.replace(answer, cost=cost)
            replies.send_bytes(_encode(Reply(request.number, answer, leaves=leaves)))
            _NUMBER.pack_into(current, 0, 0)
            if leaves:
                return _LEAVE
    except MemoryError:
        return _NO_MEMORY
    except (EOFError, OSError):
        return _END


def _answer(selectors: Selectors, request: Call) -> Answer:
    try:
        answer = selectors.answer(request.job)
    except SelectorError as error:
        answer = Answer(error=str(error))
    if _BAD_ALLOC in answer.error:  # the runtime survives it, and blames the text
        raise MemoryError
    return answer


def _limit() -> int | None:
    """Limit the memory and files of this process, and have its timer of CPU time end it.

    Returns a descriptor of ``/proc/self/statm``. Without Linux it returns None, and memory is not
    limited.
    """
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    statm: int | None = None
    with contextlib.suppress(OSError):
        statm = os.open("/proc/self/statm", os.O_RDONLY)
        pages = int(os.pread(statm, _STATM_BYTES, 0).split()[0])
        most = pages * _PAGE + process.MEBIBYTES * 2**20
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
    for kind in (resource.RLIMIT_CORE, resource.RLIMIT_FSIZE):
        resource.setrlimit(kind, (0, 0))
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 2)  # messages of a runtime without memory help nobody
    return statm


def _resident(statm: int | None) -> int:
    """Pages of this process in memory; 0 where that is not known."""
    return 0 if statm is None else int(os.pread(statm, _STATM_BYTES, 0).split()[1])


if __name__ == "__main__":
    sys.exit(main())
