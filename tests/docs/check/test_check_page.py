"""docs/check.md shows what the check really prints, its options and the fields of its report.

`python -m tests.docs.check.checkpage` writes what is printed into the page.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

import sim.nvml
from kubeletplugin.check.command import check
from kubeletplugin.check.report import Report
from tests.docs.check.checkpage import MADE, PAGE, simulated
from tests.docs.handbook.blocks import blocks
from tests.helpers.folders import short_folder


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    for name in ("KUBECONFIG", "NODE_NAME", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    with short_folder() as path:
        yield path
    sim.nvml.uninstall()


def shown(name: str) -> str:
    (text,) = (b.text for b in blocks(PAGE) if (b.kind, b.argument) == ("output", name))
    return text


def test_what_is_printed_on_a_simulated_node_is_shown(folder: Path) -> None:
    assert simulated(folder) == (0, shown("simulated"))


def test_what_is_made_on_a_simulated_node_is_shown(folder: Path) -> None:
    code, text = simulated(folder, "--create", "0", "--yes")
    assert (code, text.partition(MADE)[2]) == (0, shown("created"))


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
