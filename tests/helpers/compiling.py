"""Compiling of what the tests import: once, and not once in each of pytest-xdist's workers.

Nothing of a new checkout is compiled, and all workers collect the same modules in the same order:
each of them would compile nearly all of it, for more CPU time than the rest of collection takes.
"""

from __future__ import annotations

import compileall
import importlib
import re
from contextlib import suppress
from pathlib import Path

import pytest

_PROGRAMS = ("api", "cdi", "cli", "controller", "dra", "hack", "kubeletplugin", "sim", "tests")
_REWRITTEN = re.compile(r"/(?:test_[^/]*|conftest)\.py$")
"""Modules that pytest compiles in its own way, with the assertions rewritten."""


def compile_programs(root: Path) -> None:
    """Compile all modules below ``root`` that are none of tests, on all cores; errors are left."""
    for program in _PROGRAMS:
        compileall.compile_dir(root / program, quiet=2, rx=_REWRITTEN, workers=0)


def import_tests(root: Path, *, worker: int, workers: int) -> None:
    """Import all modules of tests, those first that no other worker begins with.

    What cannot be imported is left: collection tells of it.
    """
    paths = [p.relative_to(root).with_suffix("").parts for p in (root / "tests").rglob("test_*.py")]
    names = sorted(".".join(parts) for parts in paths if parts[1] != "cluster")
    first = len(names) * worker // workers
    for name in [*names[first:], *names[:first]]:
        with suppress(Exception, pytest.skip.Exception):
            importlib.import_module(name)
