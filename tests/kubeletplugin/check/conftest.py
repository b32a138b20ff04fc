"""Simulated machines that are checked as a person would: by the command line."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result

from kubeletplugin.check.report import Item, Mark, Report
from sim.nvml.machine import GpuSpec, Machine
from sim.nvml.products import Variants
from sim.plugin import check
from tests.helpers.folders import short_folder

A100 = "A100-SXM4-40GB"
H100 = "H100-80GB-HBM3"
CREATE = ("--create", "0", "--yes")
GI_CREATE = "nvmlDeviceCreateGpuInstanceWithPlacement"
CI_CREATE = "nvmlGpuInstanceCreateComputeInstance"


@dataclass(frozen=True)
class Checked:
    """What a check said, and how it ended."""

    report: Report
    screen: str
    code: int


class Node:
    """A simulated machine, and the check of it."""

    def __init__(self, machine: Machine, folder: Path) -> None:
        self.machine = machine
        self.file = folder / "report.json"

    def run(self, *arguments: str) -> Result:
        command = ["--hardware", str(self.machine.directory), "--", *arguments]
        return CliRunner().invoke(check, command)

    def check(self, *arguments: str) -> Checked:
        """Run the check with a report."""
        self.file.unlink(missing_ok=True)
        result = self.run("--json", str(self.file), *arguments)
        assert self.file.exists(), result.output
        return Checked(
            msgspec.json.decode(self.file.read_bytes(), type=Report),
            result.output,
            result.exit_code,
        )


MakeNode = Callable[..., Node]


def marks(report: Report, item: Item) -> set[Mark]:
    return {f.mark for f in report.findings if f.item is item}


def text(report: Report, item: Item) -> str:
    return " ".join(f"{f.text} {f.remedy}" for f in report.findings if f.item is item)


def state_of(node: Node) -> Path:
    return node.machine.host_root / "var/lib/kubelet/plugins/mig.dra.dev"


def refused(node: Node, *arguments: str) -> str:
    """Answer of a check that has to refuse and to change nothing."""
    before = len(node.machine.mutations())
    result = node.run(*arguments)
    assert result.exit_code == 1, result.output
    assert len(node.machine.mutations()) == before
    return result.output


def assert_clean(node: Node) -> None:
    assert all(g.gpu_instances == [] for g in node.machine.state().gpus)
    assert all(g.processes == [] for g in node.machine.state().gpus)
    assert not state_of(node).exists()


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder whose path leaves room on a line, and for a socket's name."""
    with short_folder() as path:
        yield path


@pytest.fixture
def make_node(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Node]:
    """Makes a machine with the given GPUs and variants; no cluster is known."""
    for name in ("KUBECONFIG", "NODE_NAME", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)

    def make(*products: str | GpuSpec, variants: Variants | None = None) -> Node:
        specs = [p if isinstance(p, GpuSpec) else GpuSpec(p) for p in products or (A100,)]
        return Node(Machine.create(folder / "m", specs, variants=variants), folder)

    return make
