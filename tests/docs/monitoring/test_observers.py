"""What metrics hear of is told by somebody: else they would stay at 0."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from controller.reporting.metrics import ControllerMetrics
from controller.reporting.observer import ControllerObserver
from kubeletplugin.telemetry.metrics import PluginMetrics
from kubeletplugin.telemetry.observer import NodeObserver

ROOT = Path(__file__).parents[3]
OBSERVERS = {
    "controller": (ControllerMetrics, ControllerObserver),
    "kubeletplugin": (PluginMetrics, NodeObserver),
}


@pytest.mark.parametrize("package", OBSERVERS)
def test_every_notice_is_heard_and_given(package: str) -> None:
    metrics, observer = OBSERVERS[package]
    heard, told = ({n for n in vars(c) if not n.startswith("_")} for c in (metrics, observer))
    assert heard == told, (
        f"{metrics.__name__} and {observer.__name__} differ in {sorted(heard ^ told)}: each notice "
        "is a method of both, and does nothing in the second"
    )
    code = "\n".join(path.read_text() for path in (ROOT / package).rglob("*.py"))
    silent = sorted(n for n in told if not re.search(rf"observer\.{n}\b", code))
    assert not silent, (
        f"nobody in {package}/ calls {silent} of {observer.__name__}, and what counts it stays at "
        "0: call it where it happens"
    )
