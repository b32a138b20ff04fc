"""Whatever a tenant's selector does, it is answered, and so is the next one."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dra.cel.questions import Answer, Job, Selected
from dra.cel.selectors import Selectors
from dra.sandbox import process
from dra.sandbox.process import Sandbox, SandboxError
from tests.dra.cel.hostile import BOUNDED, TOO_MUCH
from tests.dra.cel.slices import OWN, small_slice

PLAIN = Job((f"{OWN}.profile == '1g.5gb'",), (small_slice(),))


SELECTED = (Selected((0,)),)


@pytest.fixture(scope="module")
def shared() -> Iterator[Sandbox]:
    running = Sandbox()
    yield running
    running.close()


@pytest.fixture
def sandbox() -> Iterator[Sandbox]:
    running = Sandbox()
    yield running
    running.close()


def ask(sandbox: Sandbox, expression: str) -> Answer:
    """As a controller does: whether it compiles, and then what it selects."""
    answer = sandbox.answer(Job((expression,)))
    return answer if answer.error else sandbox.answer(Job((expression,), (small_slice(),)))


@pytest.mark.parametrize("name", TOO_MUCH)
def test_what_takes_too_much_is_refused_and_the_next_one_is_answered(
    shared: Sandbox, name: str
) -> None:
    answer = ask(shared, TOO_MUCH[name])
    assert answer.costly
    assert "takes more than" in answer.error
    assert answer.cost == process.SECONDS
    assert shared.answer(PLAIN).selected == SELECTED


@pytest.mark.parametrize("name", BOUNDED)
def test_what_is_odd_and_cheap_does_no_harm(shared: Sandbox, name: str) -> None:
    answer = ask(shared, BOUNDED[name])
    assert not answer.costly
    assert len(answer.error) < 1000
    assert all(len(selected.error) < 1000 for selected in answer.selected)
    assert shared.answer(PLAIN).selected == SELECTED


def test_no_process_takes_more_memory_than_it_may() -> None:
    code = (
        "import resource, sys\n"
        "from dra.sandbox.process import Sandbox\n"
        "from dra.cel.questions import Job\n"
        "from tests.dra.cel.hostile import TOO_MUCH\n"
        "from tests.dra.cel.slices import small_slice\n"
        "sandbox = Sandbox()\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "for name in ('growing by join', 'lists of lists', 'nested optionals'):\n"
        "    text = TOO_MUCH[name]\n"
        "    assert sandbox.answer(Job((text,), (small_slice(),))).costly\n"
        "after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "sandbox.close()\n"
        "print(after - before, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    grown, most = (int(number) // 1024 for number in ended.stdout.split())
    assert grown < 8
    assert most < process.MEBIBYTES + 64, "the program itself takes some 30 MiB"


def test_it_answers_what_the_runtime_answers(shared: Sandbox) -> None:
    direct = Selectors()
    for expression in ("device.driver == 'x'", f"{OWN}.parentUUID == 'x'", "1 + 1", "no_such()"):
        job = Job((expression,))
        found = shared.answer(job)
        expected = direct.answer(job)
        assert (found.error, found.per_gpu) == (expected.error, expected.per_gpu)
    failing = Job((f"{OWN}.colour == 'x'",), (small_slice(),))
    assert shared.answer(failing).selected == direct.answer(failing).selected
    assert "colour" in shared.answer(failing).selected[0].error


def test_the_leavings_of_others_are_nobodys_fault(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory runs out in a worker that is not fresh: a fresh one is asked."""
    big = " && ".join([f"{OWN}.profile != '{'x' * 60}'"] * 90)
    for number in range(40):  # far more than a worker may keep
        answer = sandbox.answer(Job((f"{big} && {number} == {number}",)))
        assert not answer.costly
        assert answer.error == ""


def test_a_worker_that_somebody_ends_between_questions_is_replaced(sandbox: Sandbox) -> None:
    assert sandbox.answer(PLAIN).selected == SELECTED
    assert sandbox._process is not None
    keeper = sandbox._process.pid
    children = Path(f"/proc/{keeper}/task/{keeper}/children").read_text().split()
    os.kill(int(children[0]), signal.SIGKILL)
    assert [sandbox.answer(PLAIN).selected for _ in range(3)] == [SELECTED] * 3


def test_a_process_that_cannot_be_started_is_an_error_and_no_answer(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(SandboxError, match="cannot be evaluated"):
        sandbox.answer(PLAIN)
    monkeypatch.undo()
    assert sandbox.answer(PLAIN).selected == SELECTED


def test_no_answer_in_real_time_is_an_error_and_not_the_selectors_fault(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert sandbox.answer(PLAIN).selected == SELECTED
    assert sandbox._process is not None
    os.killpg(sandbox._process.pid, signal.SIGSTOP)
    monkeypatch.setattr(process, "PATIENCE_SECONDS", 0.05)
    with pytest.raises(SandboxError, match="no answer within"):
        sandbox.answer(PLAIN)
    monkeypatch.undo()
    assert sandbox.answer(PLAIN).selected == SELECTED


def test_who_asks_has_no_cel_runtime() -> None:
    code = (
        "import sys; import controller.cli, cli.commands.explain, cli.commands.lint; "
        "assert not {'cel_expr_python', 're2'} & set(sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_an_end_of_input_ends_the_process() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "dra.sandbox.worker"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, b"", b"")


def test_it_says_once_that_there_are_no_filters_of_system_calls() -> None:
    code = "import platform; platform.machine = lambda: 'other'; from dra.sandbox import worker; "
    ended = subprocess.run(
        [sys.executable, "-c", f"{code}worker.main()"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=True,
    )
    assert ended.stderr.count(b"without seccomp") == 1


def test_the_limits_hold_for_the_process_that_evaluates_only(sandbox: Sandbox) -> None:
    before = resource.getrlimit(resource.RLIMIT_AS)
    sandbox.answer(PLAIN)
    assert resource.getrlimit(resource.RLIMIT_AS) == before


# -- a worker that a selector has taken over reaches nothing


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
