"""Times that a check measures, and a simulated machine that takes them as its latencies."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from click.testing import CliRunner

from kubeletplugin.check.report import Report
from sim.nvml.cli import main
from sim.nvml.library import read_latencies
from sim.nvml.machine import Machine
from tests.kubeletplugin.check.conftest import A100, Node

MakeNode = Callable[..., Node]
CREATE = ("--create", "0", "--yes")
SLOW = {
    "nvmlDeviceCreateGpuInstanceWithPlacement": 0.02,
    "nvmlGpuInstanceCreateComputeInstance": 0.03,
    "nvmlGpuInstanceDestroy": 0.01,
    "nvmlInit": 0.04,
}


def medians(report: Report) -> dict[str, float]:
    return {name: report.times[name].median / 1000 for name in SLOW}


def test_what_one_machine_takes_another_takes_by_its_report(
    make_node: MakeNode, folder: Path
) -> None:
    first = make_node(A100)
    first.machine.configure(latencies=SLOW)
    measured = medians(first.check(*CREATE).report)
    assert {name: measured[name] >= SLOW[name] for name in SLOW} == dict.fromkeys(SLOW, True)

    report, second = folder / "measured.json", folder / "second"
    first.file.rename(report)
    arguments = ["init", "--state", str(second), "--gpu", A100, "--latencies", str(report)]
    made = CliRunner().invoke(main, arguments)
    assert made.exit_code == 0, made.output
    machine = Machine(second)
    assert {n: machine.state().latencies[n] for n in SLOW} == measured
    again = medians(Node(machine, folder).check(*CREATE).report)
    assert {name: again[name] >= measured[name] for name in SLOW} == dict.fromkeys(SLOW, True)


def test_a_report_is_taken_by_a_machine_that_is_there_and_nothing_else_is(
    make_node: MakeNode, folder: Path
) -> None:
    node = make_node(A100)
    node.check()
    state = ("--state", str(node.machine.directory))
    assert CliRunner().invoke(main, ["latencies", *state, str(node.file)]).exit_code == 0
    assert node.machine.state().latencies == read_latencies(node.file)
    (folder / "other").write_text("{}")
    refused = CliRunner().invoke(main, ["latencies", *state, str(folder / "other")])
    assert refused.exit_code == 1
    assert "no report" in refused.output
