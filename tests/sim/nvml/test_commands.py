"""The command line of the simulated hardware."""

import json
from pathlib import Path

from click.testing import CliRunner, Result

from sim.__main__ import main
from sim.plugin import plugin_arguments


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["nvml", *arguments])


def test_a_machine_is_made_cut_and_shown(tmp_path: Path) -> None:
    state = ("--state", str(tmp_path / "m"))
    gpus = ("--gpu", "A100-SXM4-40GB", "--gpu", "A30")
    assert run("init", *state, *gpus).exit_code == 0
    created = run("create", *state, "3g.20gb", "--start", "0")
    assert created.output.startswith("MIG-")
    shown = run("show", *state).output
    assert "0: NVIDIA A100-SXM4-40GB GPU-" in shown
    assert f"0:4   3g.20gb      GPU instance  1  {created.output.strip()}" in shown
    data = json.loads(run("show", *state, "--json").output)
    assert [len(g["gpu_instances"]) for g in data["gpus"]] == [1, 0]


def test_the_plugin_gets_the_machines_host_root_unless_told(tmp_path: Path) -> None:
    state = tmp_path / "m"
    run("init", "--state", str(state), "--gpu", "A30")
    assert plugin_arguments(state, ["--node-name", "n"]) == [
        "--node-name",
        "n",
        "--host-root",
        str(state / "host"),
    ]
    assert plugin_arguments(state, ["--host-root=/x"]) == ["--host-root=/x"]
