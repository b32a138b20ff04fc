"""Output of the check for docs/check.md: `python -m tests.docs.check.checkpage` writes it anew."""

from __future__ import annotations

import os
import re
from pathlib import Path

import click
from click.testing import CliRunner
from msgspec.structs import replace

from kubeletplugin.check.report import decode, draw
from sim.check import main as simulated_check
from sim.nvml.machine import GpuSpec, Machine
from tests.docs.handbook.blocks import ROOT
from tests.helpers.folders import short_folder

PAGE = ROOT / "docs/check.md"
MADE = "made and removed:\n"
_A100 = GpuSpec("A100-SXM4-40GB", uuid="GPU-5f8b2a31-4a5c-4f0e-9c3b-7d2e1a6b8c90")
_TAKEN = "2026-11-22 12:00 UTC"


def run(program: click.Command, *arguments: str, folder: Path, host: Path) -> tuple[int, str]:
    """How a check ends, and what it would print where the host's root is ``/``."""
    file = folder / "report.json"
    done = CliRunner().invoke(program, [*arguments, "--json", str(file)])
    assert done.stdout == draw(decode(file.read_bytes()))
    report = decode(file.read_bytes().replace(f"{host}/".encode(), b"/"))
    return done.exit_code, draw(replace(report, taken=_TAKEN))


def simulated(folder: Path, *arguments: str) -> tuple[int, str]:
    machine = Machine.create(folder / "m", [_A100])
    options = ("--hardware", str(machine.directory), "--", *arguments)
    return run(simulated_check, *options, folder=folder, host=machine.host_root)


def outputs() -> dict[str, str]:
    """What the page shows, by the name of its block."""
    with short_folder() as one, short_folder() as other:
        return {
            "simulated": simulated(one)[1],
            "created": simulated(other, "--create", "0", "--yes")[1].partition(MADE)[2],
        }


def main() -> None:
    """Write what is printed into the page."""
    for name in ("KUBECONFIG", "NODE_NAME", "KUBERNETES_SERVICE_HOST"):
        os.environ.pop(name, None)
    page = PAGE.read_text()
    for name, text in outputs().items():
        found = re.search(rf"<!-- output: {name} -->\n```text\n(.*?)```\n", page, re.DOTALL)
        if found is not None:
            page = f"{page[: found.start(1)]}{text}{page[found.end(1) :]}"
    PAGE.write_text(page)


if __name__ == "__main__":
    main()
