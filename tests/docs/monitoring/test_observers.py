"""What metrics hear of is told by somebody: else they would stay at 0."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from controller.report.metrics import ControllerMetrics
from kubeletplugin.telemetry.metrics import PluginMetrics
from kubeletplugin.telemetry.observer import NodeObserver

ROOT = Path(__file__).parents[3]
CALLED = {
    "controller": (ControllerMetrics, "metrics"),
    "kubeletplugin": (PluginMetrics, "observer"),
}


@pytest.mark.parametrize("package", CALLED)
def test_every_notice_is_given(package: str) -> None:
    metrics, name = CALLED[package]
    heard = [notice for notice in vars(metrics) if not notice.startswith("_")]
    code = "\n".join(path.read_text() for path in (ROOT / package).rglob("*.py"))
    silent = sorted(n for n in heard if not re.search(rf"{name}\.{n}\b", code))
    assert not silent, (
        f"nobody in {package}/ calls {silent} of {metrics.__name__}, and what counts it stays at "
        "0: call it where it happens"
    )


def test_every_notice_of_the_node_is_heard() -> None:
    heard, told = (
        {n for n in vars(c) if not n.startswith("_")} for c in (PluginMetrics, NodeObserver)
    )
    assert heard == told, (
        f"{sorted(heard ^ told)}: each notice is a method of both, and does nothing in the second"
    )
