"""Confinement of a process that evaluates what tenants wrote: it computes, and reaches nothing.

A filter of system calls (seccomp, https://docs.kernel.org/userspace-api/seccomp_filter.html), which
needs no right and lasts for the life of the process. It allows the calls that computing takes, on
files that are open already. No file can be opened, so that the service account's token is out of
reach. There are no sockets, no programs, no signals and no looking into other processes.
"""

from __future__ import annotations

import ctypes
import errno
import platform
import struct
from collections.abc import Iterable

_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _MODE_FILTER = 38, 22, 2

_CALLS = (
    *("read", "write", "close", "fstat", "poll", "lseek", "mmap", "mprotect", "munmap", "brk"),
    *("rt_sigaction", "rt_sigprocmask", "rt_sigreturn", "pread64", "sched_yield", "mremap"),
    *("madvise", "setitimer", "getpid", "exit", "gettimeofday", "getrusage", "sigaltstack"),
    *("gettid", "futex", "restart_syscall", "clock_gettime", "exit_group", "getrandom"),
)
_X86 = (
    *(0, 1, 3, 5, 7, 8, 9, 10, 11, 12, 13, 14, 15, 17, 24, 25, 28, 38, 39, 60, 96, 98, 131),
    *(186, 202, 219, 228, 231, 318),
)
_ARM = (
    *(63, 64, 57, 80, 73, 62, 222, 226, 215, 214, 134, 135, 139, 67, 124, 216, 233, 103, 172),
    *(93, 169, 165, 132, 178, 98, 128, 113, 94, 278),
)
_MACHINES = {
    "x86_64": (0xC000003E, dict(zip(_CALLS, _X86, strict=True))),
    "aarch64": (0xC00000B7, dict(zip(_CALLS, _ARM, strict=True))),
}
"""By machine, its AUDIT_ARCH (linux/audit.h) and the numbers of the calls that are allowed."""

_LOAD, _IS_EQUAL, _RETURN = 0x20, 0x15, 0x06
_NUMBER_AT, _MACHINE_AT = 0, 4
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050000 | errno.EPERM


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def confine() -> bool:
    """Confine this process for good; returns False where the kernel or machine cannot."""
    machine = _MACHINES.get(platform.machine())
    if machine is None:
        return False
    code = _program(machine[0], machine[1].values())
    program = _Program(len(code) // 8, code)
    try:
        prctl = ctypes.CDLL(None, use_errno=True).prctl
    except (OSError, AttributeError):
        return False
    if prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        return False
    return not prctl(_PR_SET_SECCOMP, _MODE_FILTER, ctypes.byref(program), 0, 0)


def _program(machine: int, calls: Iterable[int]) -> bytes:
    """Instructions of the filter: struct sock_filter of linux/filter.h, eight bytes each."""
    numbers = [*calls]

    def step(code: int, value: int, if_equal: int = 0, otherwise: int = 0) -> bytes:
        return struct.pack("=HBBI", code, if_equal, otherwise, value)

    steps = [step(_LOAD, _MACHINE_AT), step(_IS_EQUAL, machine, 1, 0), step(_RETURN, _REFUSE)]
    steps.append(step(_LOAD, _NUMBER_AT))
    for left, number in zip(range(len(numbers), 0, -1), numbers, strict=True):
        steps.append(step(_IS_EQUAL, number, left, 0))
    return b"".join([*steps, step(_RETURN, _REFUSE), step(_RETURN, _ALLOW)])
