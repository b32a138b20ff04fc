"""The programs stay within the chart's memory, whatever users store in the API server.

Each of them reads objects as large as a user can make them, after small ones that let pages grow:
in its first lists, and in watches.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from dra.common.quantity import parse_quantity
from tests.helpers.hostile import KINDS, Hostile
from tests.helpers.waiting import wait_for

ROOT = Path(__file__).parents[3]
VALUES = ROOT / "deploy/helm/dra-driver-nvidia-mig/values.yaml"
FEW, LARGE, LARGE_OF_OTHERS, EVENTS = 375, 24, 6, 8
CLAIMS = "resourceclaims"
MIB = 2**20

NODE = """
import sys, threading
import kubeletplugin.daemon.daemon
from dra.kube.client import KubeApi
from dra.kube.timing import SystemClock
from kubeletplugin.claims.claim_watch import ClaimWatch
from kubeletplugin.claims.lookup import ClaimReader

class Nobody:
    def expect(self, *_, **__):
        return False

claims = ClaimReader(KubeApi.connect(sys.argv[1], user_agent="t"), driver="mig.dra.dev", pool="n")
assert not claims.listed()
watch = ClaimWatch(claims, Nobody(), Nobody(), clock=SystemClock())
watch.start()
watch._reflector.wait_synced(None)
print("ready", flush=True)
threading.Event().wait()
"""
"""The parts of the node program that read claims, with all of it in memory."""

PAGE = """
import sys, threading, time
from datetime import UTC, datetime
from cli.page.content import Content
from cli.page.mirrors import Mirrors
from dra.kube.client import KubeApi

content = Content("mig.dra.dev", time.monotonic, wall=lambda: datetime.now(UTC))
mirrors = Mirrors(KubeApi.connect(sys.argv[1], user_agent="t"), content, driver="mig.dra.dev")
mirrors.start()
for each in mirrors.mirrors:
    each.wait_synced(None)
print("ready", flush=True)
threading.Event().wait()
"""


def limit(program: str) -> int:
    """Bytes of memory that the chart allows a program."""
    values = yaml.safe_load(VALUES.read_text())
    return int(parse_quantity(values[program]["resources"]["limits"]["memory"]))


def peak(pid: int) -> int:
    """The most memory that a process has had, in bytes."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found, "it has ended"
    return int(found[1]) * 1024


@contextmanager
def running(command: list[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, *command],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            yield process
        finally:
            process.kill()
            process.wait()


@pytest.mark.parametrize(
    ("command", "kinds", "most"),
    [
        (
            ["-m", "controller", "--no-leader-elect", "--kubeconfig"],
            KINDS,
            limit("controller") // 2,
        ),
        (["-c", NODE], (CLAIMS,), limit("kubeletPlugin") // 2),
        (["-c", PAGE], (CLAIMS, "pods", "events"), 160 * MIB),
    ],
    ids=["controller", "node program", "page"],
)
def test_memory_is_bounded_whatever_users_store(
    command: list[str], kinds: tuple[str, ...], most: int, tmp_path: Path
) -> None:
    many = {kind: LARGE if kind == CLAIMS else LARGE_OF_OTHERS for kind in kinds}
    watched = tuple(kind for kind in (CLAIMS, "pods", "persistentvolumeclaims") if kind in kinds)
    log = tmp_path / "log"
    with Hostile(FEW, many, events=EVENTS, watched=watched) as server:
        config = server.kubeconfig(tmp_path / "kubeconfig")
        with running([*command, config], log) as process:
            wait_for("the first lists", lambda: re.search(r"\bready\b", log.read_text()))
            listed = peak(process.pid)
            wait_for("its watches", lambda: {*watched} <= server.told)
            assert listed <= peak(process.pid) < most, f"{peak(process.pid) / MIB:.0f} MiB"
