"""The commands of README and handbook that can run here do run, on a simulated cluster."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from dra.claims.classes import generated_classes
from dra.gpu.names import DEFAULT_DRIVER
from hack.cluster.containerd import references
from sim.cluster.cluster import ClusterShape, running_cluster
from sim.nvml.products import load_product, product_names
from tests.docs.handbook.blocks import PAGES, ROOT, Block, blocks
from tests.helpers.waiting import PATIENCE

_FIRST = ("README.md", "install.md", "first-pod.md", "kubectl-mig.md", "configuration.md")
"""The pages in the order in which a new user reads them; the others follow."""

NOTHING_LEFT = Block(
    page=ROOT / "tests/docs/handbook/test_commands.py",
    line=0,
    language="sh",
    marker="",
    text="""
    kubectl wait --for=delete resourceclaims --all --timeout=60s
    left=$(kubectl get pods,resourceclaims,resourceclaimtemplates -A -o name)
    test -z "$left" || { echo "left behind: $left"; exit 1; }
    """,
)


def in_order() -> list[Path]:
    def rank(page: Path) -> int:
        return _FIRST.index(page.name) if page.name in _FIRST else len(_FIRST)

    return sorted(PAGES, key=rank)


@dataclass(frozen=True)
class Terminal:
    """Where a reader would type: a directory, and a cluster that kubectl finds."""

    directory: Path
    kubeconfig: Path

    def run(self, block: Block) -> None:
        # What is enough for a reader may be too little on a machine that does more than this.
        text = re.sub(r"--timeout=\d+s", f"--timeout={5 * PATIENCE:.0f}s", block.text)
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
def terminal(kubeconfig: Path, tmp_path: Path) -> Terminal:
    return Terminal(tmp_path, kubeconfig)


def test_the_commands_of_all_pages_run_one_after_the_other_and_leave_nothing(
    terminal: Terminal,
) -> None:
    ran = 0
    for page in in_order():
        for block in blocks(page):
            if block.kind == "file":
                (terminal.directory / block.argument).write_text(block.text)
            elif (block.kind, block.argument) == ("runs", "cluster"):
                terminal.run(block)
                ran += 1
        terminal.run(NOTHING_LEFT)
    assert ran > 10


def test_a_pod_made_from_python_has_a_slice_and_leaves_nothing(terminal: Terminal) -> None:
    example = ROOT / "docs/examples/python/slice_pod.py"
    command = f"{sys.executable} {example} > log; grep nvidia-caps log"
    terminal.run(Block(page=example, line=0, language="sh", marker="", text=command))
    terminal.run(NOTHING_LEFT)


def test_a_name_stands_for_one_object_on_all_pages() -> None:
    """Whoever reads a second page applies to the cluster in which the first one's objects are."""
    known: dict[tuple[str, str], tuple[str, object]] = {}
    for block in (b for page in PAGES for b in blocks(page) if b.kind == "file"):
        for obj in yaml.safe_load_all(block.text):
            key = (obj["kind"], obj["metadata"]["name"])
            place, body = known.setdefault(key, (block.place, obj))
            assert body == obj, f"{key} differs: {place}, {block.place}"


def test_the_cluster_without_a_registry_has_the_images_of_all_pages() -> None:
    texts = [b.text for page in PAGES for b in blocks(page) if b.kind == "file"]
    asked = set(re.findall(r"^ *image: (.*)$", "\n".join(texts), flags=re.MULTILINE))
    assert {f"docker.io/library/{image}" for image in asked} <= set(references())


def test_every_product_can_serve_the_first_pod() -> None:
    (first,) = {
        name
        for page in PAGES
        for block in blocks(page)
        if block.argument == "first-slice.yaml"
        for name in re.findall(r"deviceClassName: ([\w.-]+)", block.text)
    }
    for profiles in filter(None, (load_product(name).gi_profiles for name in product_names())):
        made = generated_classes(DEFAULT_DRIVER, {profile.name for profile in profiles})
        (selected,) = (c["spec"]["selectors"] for c in made if c["metadata"]["name"] == first)
        least = int(re.findall(r"quantity\('(\d+)Mi'\)", selected[0]["cel"]["expression"])[0])
        assert any(profile.memory_mib >= least for profile in profiles)
