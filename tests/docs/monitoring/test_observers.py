"""What metrics hear of is told by somebody: else they would stay at 0."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from controller.report.metrics import ControllerMetrics
from kubeletplugin.telemetry.observer import NodeObserver

ROOT = Path(__file__).parents[3]
CALLED = {
    "controller": (ControllerMetrics, "metrics"),
    "kubeletplugin": (NodeObserver, "(?:observer|metrics)"),
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
