"""Helpers of the tests of the check that makes slices."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from click.testing import CliRunner, Result

from sim.check import main
from tests.kubeletplugin.check.conftest import Node

MakeNode = Callable[..., Node]
CREATE = ("--create", "0", "--yes")
GI_CREATE = "nvmlDeviceCreateGpuInstanceWithPlacement"
CI_CREATE = "nvmlGpuInstanceCreateComputeInstance"


def state_of(node: Node) -> Path:
    return node.machine.host_root / "var/lib/kubelet/plugins/mig.dra.dev"


def refused(node: Node, *arguments: str, text: str = "") -> Result:
    """The check, which has to refuse and to change nothing."""
    before = len(node.machine.mutations())
    command = ["--hardware", str(node.machine.directory), "--", *arguments]
    result = CliRunner().invoke(main, command, input=text)
    assert result.exit_code == 1, result.output
    assert len(node.machine.mutations()) == before
    return result


def assert_clean(node: Node) -> None:
    assert all(g.gpu_instances == [] for g in node.machine.state().gpus)
    assert all(g.processes == [] for g in node.machine.state().gpus)
    assert not state_of(node).exists()
