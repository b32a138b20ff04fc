"""The list of steps is complete: what can change a file is counted, and nothing else is used."""

from __future__ import annotations

import ast
import inspect
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

import cdi
import kubeletplugin
from tests.failures.helpers.steps import OS_WRITERS, StepRecorder, hooked
from tests.helpers.waiting import PATIENCE

HARMLESS = {
    *("close", "fdopen", "fsdecode", "fsencode", "fspath", "fstat", "getpid", "getppid", "lstat"),
    *("fwalk", "walk"),
    *(
        "environ",
        "listdir",
        "major",
        "makedev",
        "minor",
        "path",
        "readlink",
        "scandir",
        "stat",
        "strerror",
    ),
    *(
        "read",
        "statvfs",
        "stat_result",
        "sep",
        "kill",
        "uname",
        "urandom",
        "access",
        "W_OK",
        "X_OK",
    ),
}
"""Names of ``os`` that change no file; what ``fdopen`` is given was counted when opened."""

UNCOUNTED_MODULES = {"shutil", "subprocess", "sqlite3", "mmap", "dbm", "shelve", "ctypes.util"}
"""Modules with ways of their own to write files, which no hook sees."""

ALLOWED = {
    "host/driverfiles.py": {"mmap"},
    "host/trees.py": {"subprocess"},
    "sharing/sharing.py": {"subprocess"},
}
"""It maps files to read them; runs of ``rm`` and ``nvidia-smi`` are counted as programs."""


@cache
def sources() -> list[tuple[Path, ast.Module]]:
    """Modules of the daemon; the check is another program, which no crash point runs."""
    folders = [Path(folder) for package in (kubeletplugin, cdi) for folder in package.__path__]
    paths = [path for folder in folders for path in sorted(folder.rglob("*.py"))]
    others = Path(*kubeletplugin.__path__, "check")
    return [(p, ast.parse(p.read_text())) for p in paths if not p.is_relative_to(others)]


def test_the_daemon_does_not_import_the_check() -> None:
    program = "import sys, kubeletplugin.daemon.daemon; print(*sys.modules)"
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=PATIENCE)
    loaded = set(done.stdout.split())
    assert "kubeletplugin.daemon.daemon" in loaded
    assert not {m for m in loaded if m.startswith("kubeletplugin.check")}


def test_every_function_of_os_that_the_program_uses_is_counted_or_harmless() -> None:
    used: set[str] = set()
    for path, tree in sources():
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                assert node.module not in {"os", "io"}, f"{path}: import the module, not its names"
            if (
                isinstance(node, ast.Attribute)
                and isinstance(node.value, ast.Name)
                and node.value.id == "os"
                and not node.attr.startswith("O_")
            ):
                used.add(node.attr)
    assert used & set(OS_WRITERS), "the scan finds nothing"
    unknown = used - set(OS_WRITERS) - {"open"} - HARMLESS
    assert not unknown, f"os.{unknown}: count it in steps.OS_WRITERS, or say that it is harmless"


def test_no_module_is_used_that_writes_files_unseen() -> None:
    for path, tree in sources():
        for node in ast.walk(tree):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module:
                names.append(node.module)
            allowed = next((ALLOWED[place] for place in ALLOWED if path.match(place)), set[str]())
            assert not (set(names) - allowed) & UNCOUNTED_MODULES, f"{path} imports {names}"


def test_the_c_library_is_called_only_where_its_calls_are_counted_or_harmless() -> None:
    users = {
        path.name
        for path, tree in sources()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr in {"CDLL", "PyDLL", "cdll", "pythonapi"}
    }
    assert users == {"trees.py", "__main__.py"}, "that calls mallopt, which changes no file"


def make(path: Path) -> Path:
    path.write_text("")
    return path


WAYS: dict[str, Callable[[Path], object]] = {
    "chmod": lambda d: make(d / "a").chmod(0o600),
    "hardlink_to": lambda d: (d / "b").hardlink_to(make(d / "a")),
    "mkdir": lambda d: (d / "a").mkdir(),
    "open": lambda d: (d / "a").open("w").close(),
    "rename": lambda d: make(d / "a").rename(d / "b"),
    "replace": lambda d: make(d / "a").replace(d / "b"),
    "rmdir": lambda d: d.rmdir(),
    "symlink_to": lambda d: (d / "a").symlink_to(d / "b"),
    "touch": lambda d: (d / "a").touch(),
    "unlink": lambda d: make(d / "a").unlink(),
    "write_bytes": lambda d: (d / "a").write_bytes(b""),
    "write_text": lambda d: (d / "a").write_text(""),
    "mkstemp": lambda d: os.close(tempfile.mkstemp(dir=d)[0]),
    "builtin open": lambda d: open(d / "a", "x").close(),  # noqa: PTH123 - it is what is tested
}


@pytest.mark.parametrize("way", WAYS)
def test_every_way_to_change_a_file_is_counted(tmp_path: Path, way: str) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    with hooked(StepRecorder()) as recorder:
        recorder.arm()
        WAYS[way](folder)
        taken = recorder.disarm()
    made = make in inspect.getclosurevars(WAYS[way]).globals.values()
    assert len([s for s in taken if s.kind == "file"]) > int(made), taken


def test_the_ways_of_pathlib_are_all_tried() -> None:
    changing = {
        *("chmod", "hardlink_to", "lchmod", "link_to", "mkdir", "rename", "replace", "rmdir"),
        *("symlink_to", "touch", "unlink", "write_bytes", "write_text"),
    }
    assert changing & set(dir(Path)) - {"lchmod", "link_to"} <= WAYS.keys()
