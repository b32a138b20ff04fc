"""Every step of the node program that the world could see, counted as it is taken.

A step is a call of NVML, an operation that changes a file or a directory, a mount or its end, a
program of the driver that is run to its end, or a request that changes something in the API. After
any step the process can be killed; before any step, the step can be refused. Functions are replaced
where the program's calls end up (``pathlib`` and ``tempfile`` call ``os``), so that new code is
counted without anybody registering it.
"""

from __future__ import annotations

import ctypes
import errno
import io
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sim.nvml.library
from dra.kube.timing import SystemClock
from kubeletplugin.host import trees

OS_WRITERS = (
    "chmod",
    "chown",
    "fchmod",
    "fsync",
    "fdatasync",
    "ftruncate",
    "link",
    "mkdir",
    "mkfifo",
    "mknod",
    "pwrite",
    "remove",
    "removexattr",
    "rename",
    "replace",
    "rmdir",
    "sendfile",
    "setxattr",
    "symlink",
    "truncate",
    "unlink",
    "utime",
    "write",
    "writev",
)
"""Functions of ``os`` that change files; ``os.open`` and ``io.open`` count when they can write."""

_WRITE_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class KilledError(BaseException):
    """The process is dead: raised by every step that it would still take."""


@dataclass(frozen=True, slots=True)
class Step:
    """``kind`` is nvml, file, mount, program or api; ``name`` the function or request.

    ``path`` is as far as known.
    """

    kind: str
    name: str
    path: str = ""


class StepRecorder:
    """Counts steps while armed, in every thread of the program.

    ``kill_after`` is the number of the step after which the process ends: by SIGKILL, or with
    ``in_process`` by KilledError from this and every later step of the threads that lived then.
    ``refuse`` may give an error to raise instead of taking a step. ``after`` is called after each.
    """

    def __init__(
        self, *, in_process: bool = False, after: Callable[[], object] = lambda: None
    ) -> None:
        self.taken: list[Step] = []
        self.kill_after: int | None = None
        self.refuse: Callable[[Step], OSError | None] = lambda step: None
        self.armed = False
        self.life = 0
        self.skipped = 0.0
        self._after = after
        self._in_process = in_process
        self._busy = 0
        self._dead: set[int] = set()
        self._lock = threading.Lock()
        self._local = threading.local()

    def arm(self, *, kill_after: int | None = None) -> None:
        """Count from now on."""
        self.taken = []
        self.kill_after = kill_after
        self.armed = True

    def disarm(self) -> list[Step]:
        """Count no more; the steps since ``arm``."""
        self.armed = False
        self.kill_after = None
        return self.taken

    def die(self) -> None:
        """All threads of the program are dead from now on; new ones belong to a new process."""
        with self._lock:
            self._dead.add(self.life)
            self.life += 1
            self.armed = False

    @property
    def busy(self) -> bool:
        """Whether a step is under way, in whichever thread."""
        return bool(self._busy)

    @property
    def dead(self) -> bool:
        """Whether the calling thread belongs to a process that was killed."""
        life = getattr(threading.current_thread(), "life", self.life)
        return life in self._dead

    def step(self, step: Step, act: Callable[[], Any]) -> Any:
        """Take a step, unless it is refused or the process is dead."""
        if getattr(self._local, "inside", False):
            return act()
        if self.dead:
            raise KilledError
        if error := self.refuse(step):
            raise error
        self._local.inside = True
        with self._lock:
            self._busy += 1
        try:
            return act()
        finally:
            self._local.inside = False
            with self._lock:
                self._busy -= 1
            self._took(step)

    @contextmanager
    def outside(self) -> Iterator[None]:
        """What the calling thread does here is not the program's doing."""
        before = getattr(self._local, "inside", False)
        self._local.inside = True
        try:
            yield
        finally:
            self._local.inside = before

    def _took(self, step: Step) -> None:
        if not self.armed:
            return
        with self._lock:
            self.taken.append(step)
            with self.outside():
                self._after()
            end = self.kill_after is not None and len(self.taken) >= self.kill_after
        if not end:
            return
        if not self._in_process:
            os.kill(os.getpid(), signal.SIGKILL)
        self.die()
        raise KilledError


def full_disk(*folders: Path) -> Callable[[Step], OSError | None]:
    """Refuses what needs room in these folders, as a full disk does; removing still works."""
    needing = {"open", "fsync", "link", "mkdir", "write"}

    def refuse(step: Step) -> OSError | None:
        inside = any(Path(step.path).is_relative_to(f) for f in folders)
        if step.kind == "file" and step.name in needing and inside:
            return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), step.path)
        return None

    return refuse


@contextmanager
def hooked(recorder: StepRecorder) -> Iterator[StepRecorder]:
    """Route every step of this process through the recorder; waits pass at once."""
    saved: list[tuple[Any, str, Any]] = []

    def put(owner: Any, name: str, new: Any) -> None:
        saved.append((owner, name, getattr(owner, name)))
        setattr(owner, name, new)

    for name in OS_WRITERS:
        if hasattr(os, name):
            put(os, name, _file_function(recorder, name, getattr(os, name)))
    put(os, "open", _os_open(recorder, os.open))
    opened = _io_open(recorder, io.open)
    put(io, "open", opened)
    put(_builtins(), "open", opened)
    put(sim.nvml.library.CFunction, "__call__", _nvml(recorder))
    put(trees, "_LIBC", _Libc(recorder, trees._LIBC))
    put(threading.Thread, "start", _thread_start(recorder))
    put(subprocess.Popen, "communicate", _program(recorder))
    put(SystemClock, "monotonic", lambda _: time.monotonic() + recorder.skipped)
    put(SystemClock, "wait", _clock_wait(recorder))
    put(SystemClock, "sleep", _clock_sleep(recorder))
    try:
        yield recorder
    finally:
        for owner, name, old in reversed(saved):
            setattr(owner, name, old)


def _builtins() -> Any:
    import builtins

    return builtins


def _file_function(recorder: StepRecorder, name: str, real: Any) -> Any:
    def function(*args: Any, **more: Any) -> Any:
        target = args[1] if name in {"link", "symlink", "rename", "replace"} else args[0]
        step = Step("file", name, _where(target))
        return recorder.step(step, lambda: real(*args, **more))

    return function


def _os_open(recorder: StepRecorder, real: Any) -> Any:
    def function(path: Any, flags: int, *args: Any, **more: Any) -> Any:
        if not flags & _WRITE_FLAGS:
            return real(path, flags, *args, **more)
        step = Step("file", "open", _where(path))
        return recorder.step(step, lambda: real(path, flags, *args, **more))

    return function


def _io_open(recorder: StepRecorder, real: Any) -> Any:
    def function(file: Any, mode: str = "r", *args: Any, **more: Any) -> Any:
        # A descriptor was counted when it was opened.
        if isinstance(file, int) or not set(mode) & set("wax+"):
            return real(file, mode, *args, **more)
        step = Step("file", "open", _where(file))
        return recorder.step(step, lambda: real(file, mode, *args, **more))

    return function


def _nvml(recorder: StepRecorder) -> Any:
    real = sim.nvml.library.CFunction.__call__

    def call(self: Any, *args: Any) -> Any:
        step = Step("nvml", self._export.name)
        return recorder.step(step, lambda: real(self, *args))

    return call


class _Libc:
    """The C library, of which the program calls what mounts and unmounts (see test_hooks)."""

    def __init__(self, recorder: StepRecorder, real: ctypes.CDLL) -> None:
        self._recorder = recorder
        self._real = real

    def __getattr__(self, name: str) -> Callable[..., Any]:
        function = getattr(self._real, name)

        def call(*args: Any) -> Any:
            path = args[1] if name == "mount" else args[0]
            return self._recorder.step(Step("mount", name, _where(path)), lambda: function(*args))

        return call


def _program(recorder: StepRecorder) -> Any:
    real = subprocess.Popen.communicate

    def communicate(self: Any, *args: Any, **more: Any) -> Any:
        step = Step("program", Path(self.args[0]).name)
        return recorder.step(step, lambda: real(self, *args, **more))

    return communicate


def _thread_start(recorder: StepRecorder) -> Any:
    real = threading.Thread.start

    def start(self: Any) -> None:
        self.life = getattr(threading.current_thread(), "life", recorder.life)
        real(self)

    return start


def _clock_sleep(recorder: StepRecorder) -> Any:
    def sleep(_: SystemClock, seconds: float) -> None:
        recorder.skipped += max(0.0, seconds)

    return sleep


def _clock_wait(recorder: StepRecorder) -> Any:
    def wait(_: SystemClock, event: threading.Event, seconds: float) -> bool:
        if not event.is_set():
            recorder.skipped += max(0.0, seconds)
        return event.is_set()

    return wait


def _where(target: Any) -> str:
    if isinstance(target, int):
        try:
            return str(Path(f"/proc/self/fd/{target}").readlink())
        except OSError:
            return ""
    return os.fsdecode(target)
