"""Helpers of the tests of the check that only reads."""

from __future__ import annotations

from collections.abc import Callable

from kubeletplugin.check.report import Item, Mark, Report
from tests.kubeletplugin.check.conftest import Node

MakeNode = Callable[..., Node]


def marks(report: Report, item: Item) -> set[Mark]:
    return {f.mark for f in report.findings if f.item is item}


def text(report: Report, item: Item) -> str:
    return " ".join(f"{f.text} {f.remedy}" for f in report.findings if f.item is item)
