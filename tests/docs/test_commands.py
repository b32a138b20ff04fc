"""The commands of README and handbook that can run here do run, on a simulated cluster."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import pytest

from sim.cluster.cluster import ClusterShape, running_cluster
from tests.docs.blocks import PAGES, ROOT, Block, blocks
from tests.waiting import PATIENCE

RUNNABLE = [
    page
    for page, found in groupby((b for p in PAGES for b in blocks(p)), key=lambda b: b.page)
    if any((b.kind, b.argument) == ("runs", "cluster") for b in found)
]


CLEAR = Block(
    page=ROOT / "tests/docs/test_commands.py",
    line=0,
    language="sh",
    marker="",
    text="kubectl delete pods,resourceclaims,resourceclaimtemplates --all --wait --timeout=60s",
)
"""What makes room for the next page."""


@dataclass(frozen=True)
class Terminal:
    """Where a reader would type: a directory, and a cluster that kubectl finds."""

    directory: Path
    kubeconfig: Path

    def run(self, block: Block) -> None:
        # What is enough for a reader may be too little on a machine that does more than this.
        text = block.text.replace("--timeout=60s", f"--timeout={5 * PATIENCE:.0f}s")
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", text],
            cwd=self.directory,
            env=os.environ
            | {
                "KUBECONFIG": str(self.kubeconfig),
                # `kubectl mig` finds kubectl-mig there, as it does on a user's PATH.
                "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            },
            capture_output=True,
            text=True,
            timeout=5 * PATIENCE,
            check=False,
        )
        assert done.returncode == 0, f"{block.place}\n{block.text}\n{done.stdout}\n{done.stderr}"


@pytest.fixture(scope="module")
def kubeconfig() -> Iterator[Path]:
    with (
        tempfile.TemporaryDirectory(prefix="md", dir="/tmp") as home,
        running_cluster(ClusterShape(), directory=Path(home) / "c") as cluster,
    ):
        yield cluster.kubeconfig


@pytest.fixture
def terminal(kubeconfig: Path, tmp_path: Path) -> Iterator[Terminal]:
    terminal = Terminal(tmp_path, kubeconfig)
    yield terminal
    terminal.run(CLEAR)


@pytest.mark.parametrize("page", RUNNABLE, ids=lambda page: page.name)
def test_the_commands_of_a_page_run_from_top_to_bottom(page: Path, terminal: Terminal) -> None:
    for block in blocks(page):
        if block.kind == "file":
            (terminal.directory / block.argument).write_text(block.text)
        elif (block.kind, block.argument) == ("runs", "cluster"):
            terminal.run(block)
