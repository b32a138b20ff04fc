"""A worker that a selector has taken over reaches nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

_ATTEMPTS = {
    "the token": "open({token!r}).read()",
    "the token, by openat2": "libc.syscall(437, -100, {token!r}.encode(), bytes(24), 24)",
    "its parent's memory": "os.open(f'/proc/{{os.getppid()}}/mem', os.O_RDONLY)",
    "its parent's environment": "os.open(f'/proc/{{os.getppid()}}/environ', os.O_RDONLY)",
    "a TCP socket": "socket.socket()",
    "a Unix socket": "socket.socket(socket.AF_UNIX)",
    "a netlink socket": "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)",
    "io_uring": "libc.syscall(425, 1, bytes(120))",
    "another program": "os.execv('/bin/true', ['true'])",
    "another process": "os.fork()",
    "a signal to its parent": "os.kill(os.getppid(), 0)",
    "tracing its parent": "libc.ptrace(16, os.getppid(), 0, 0)",
    "a file": "os.open('/tmp', os.O_TMPFILE | os.O_RDWR)",
    "a call of another machine": "libc.syscall(0x40000000 | 39)",
}

_CHILD = """
import ctypes, json, os, socket, sys
from dra.sandbox.confinement import confine
libc = ctypes.CDLL(None, use_errno=True)
def attempt(text):
    try:
        found = eval(text)
    except OSError as error:
        return error.errno
    return ctypes.get_errno() if found == -1 else f"reached: {{found}}"
attempts = json.loads(sys.argv[1])
confined = confine()
said = {name: attempt(text) for name, text in attempts.items()}
os.write(1, json.dumps([confined, said]).encode())
os._exit(0)
""".replace("{{", "{").replace("}}", "}")


def test_nothing_that_is_not_open_can_be_reached(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("secret")
    attempts = {name: text.format(token=str(token)) for name, text in _ATTEMPTS.items()}
    ended = subprocess.run(
        [sys.executable, "-c", _CHILD, json.dumps(attempts)],
        stdout=subprocess.PIPE,
        check=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
    )
    confined, said = json.loads(ended.stdout)
    if not confined:
        pytest.skip("no filters of system calls here")
    assert said == dict.fromkeys(_ATTEMPTS, 1)
