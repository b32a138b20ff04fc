"""What holds for all tests."""

import gc
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.helpers.compiling import compile_programs, import_tests
from tests.helpers.folders import MEMORY, unmount_below

# Without bytecode each of some hundred processes compiles anew what it imports, and each worker
# rewrites the assertions of all tests; images of Python like to switch it off.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# All folders of tests: most of what programs write here is small, synced and removed at once.
if "TMPDIR" not in os.environ:
    os.environ["TMPDIR"] = tempfile.tempdir = str(MEMORY)

# How long an example takes, or is made, says something about the machine, not about the code.
settings.register_profile("tests", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tests")

# In the background of a shell without job control SIGINT is ignored, by all that is started too.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_xdist_auto_num_workers() -> int:
    """Four more than there are cores: nearly half of the tests' time goes by in waiting."""
    return len(os.sched_getaffinity(0)) + 4


LONGEST = (
    "cli/page/browser/test_page.py",
    "cli/page/browser/test_large.py",
    "sim/cluster/test_up.py",
    "sim/cluster/test_pod_writes.py",
    "sim/cluster/test_demo.py",
    "docs/handbook/test_commands.py",
    "controller/leader/test_end_to_end.py",
    "kubeletplugin/claims/sharing/test_mps.py",
    "kubeletplugin/daemon/test_upgrade.py",
    "failures/interrupted/test_crash_points.py",
    "failures/stories/test_any_order.py",
    "failures/test_flat.py",
    "kubeletplugin/claims/test_prepare.py",
    "kubeletplugin/check/test_creating.py",
)
"""Files with the longest single tests. They come first, lest one runs alone at the end."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    place = {config.rootpath / "tests" / name: at for at, name in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(item.path, len(place)))


def pytest_xdist_setupnodes(config: pytest.Config) -> None:
    compile_programs(config.rootpath)


def pytest_collection(session: pytest.Session) -> None:
    """Collect no garbage while thousands of tests are made, which stay."""
    gc.disable()
    worker: dict[str, Any] = getattr(session.config, "workerinput", {})
    root = session.config.rootpath
    if worker and [root / arg for arg in session.config.args] == [root / "tests"]:
        number, workers = int(worker["workerid"].removeprefix("gw")), worker["workercount"]
        import_tests(root, worker=number, workers=workers)


def pytest_collection_finish() -> None:
    """Leave them out of each collection from now on: it would go through all of them.

    And collect seldom: by Python's own thresholds a seventh of the tests' CPU time goes into it.
    """
    gc.enable()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


@pytest.fixture
def tmp_path(tmp_path: Path) -> Iterator[Path]:
    """Pytest's, with nothing left mounted in it: it could not be removed, by no run of tests."""
    yield tmp_path
    unmount_below(tmp_path)
