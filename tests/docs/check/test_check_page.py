"""docs/check.md shows what the check really prints, its options and the fields of its report.

`python -m tests.docs.check.test_check_page` writes what is printed into the page.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
from click.testing import CliRunner
from msgspec.structs import replace

import sim.nvml
from kubeletplugin.check.command import check
from kubeletplugin.check.report import Report, draw
from sim.nvml.machine import GpuSpec, Machine
from sim.plugin import check as simulated_check
from tests.docs.handbook.blocks import ROOT
from tests.helpers.folders import short_folder

PAGE = ROOT / "docs/check.md"
SHOWN = re.compile(r"<!-- output: simulated -->\n```text\n(.*?)```\n", re.DOTALL)
_A100 = GpuSpec("A100-SXM4-40GB", uuid="GPU-5f8b2a31-4a5c-4f0e-9c3b-7d2e1a6b8c90")
_SURROUNDINGS = ("KUBECONFIG", "NODE_NAME", "KUBERNETES_SERVICE_HOST")


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    for name in _SURROUNDINGS:
        monkeypatch.delenv(name, raising=False)
    with short_folder() as path:
        yield path
    sim.nvml.uninstall()


def printed(folder: Path) -> str:
    """Output of a check of a simulated node, as if the host's root were ``/``."""
    machine, file = Machine.create(folder / "m", [_A100]), folder / "report.json"
    options = ["--hardware", str(machine.directory), "--", "--json", str(file)]
    done = CliRunner().invoke(simulated_check, options)
    written = file.read_bytes()
    assert (done.exit_code, done.stdout) == (0, draw(msgspec.json.decode(written, type=Report)))
    written = written.replace(f"{machine.host_root}/".encode(), b"/")
    report = msgspec.json.decode(written, type=Report)
    return draw(replace(report, taken="2026-11-22 12:00 UTC"))


def test_what_is_printed_on_a_simulated_node_is_shown(folder: Path) -> None:
    assert SHOWN.findall(PAGE.read_text()) == [printed(folder)]


def test_every_option_is_documented() -> None:
    rows = re.findall(r"^\| `(--[a-z-]+)` \|", PAGE.read_text(), re.MULTILINE)
    assert sorted(rows) == sorted(p.opts[0] for p in check.params)


def fields(struct: Any) -> Iterator[str]:
    """The names of a struct's fields, and of those of the structs in them."""
    for field in msgspec.structs.fields(struct):
        yield field.encode_name
        for kind in (field.type, *get_args(field.type)):
            if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
                yield from fields(kind)


def test_every_field_of_the_report_is_documented() -> None:
    part = PAGE.read_text().partition("## The report")[2]
    assert {name for name in fields(Report) if f"`{name}`" not in part} == set()


def write() -> None:
    for name in _SURROUNDINGS:
        os.environ.pop(name, None)
    with short_folder() as folder:
        page, text = PAGE.read_text(), printed(folder)
    PAGE.write_text(SHOWN.sub(lambda old: old[0].replace(old[1], text), page))


if __name__ == "__main__":
    write()
