"""docs/observability.md names every metric with its type and labels, and fields of log lines."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.registry import Collector

from controller.report.metrics import ControllerMetrics
from dra.claims.reasons import NodeReason, Reason
from dra.monitoring.metrics import ApiRequests, CountingSink, daemon_registry
from kubeletplugin.journal.journal import Journal
from kubeletplugin.telemetry.observer import Action, NodeObserver
from kubeletplugin.telemetry.probes import Readiness
from kubeletplugin.telemetry.telemetry import Telemetry

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs/observability.md"
Described = dict[str, tuple[str, frozenset[str]]]


class Nobody:
    def emit(self, regarding: object, reason: str, message: str, *, warning: bool = False) -> None:
        """Nobody hears it."""


def of_controller() -> CollectorRegistry:
    registry = CollectorRegistry()
    ControllerMetrics(registry, leads=lambda: True, now=lambda: datetime.now(UTC))
    return registry


def of_plugin(folder: Path) -> CollectorRegistry:
    telemetry = Telemetry()
    readiness = Readiness(on_change=lambda: None)
    telemetry.watch(lambda: (), Journal(folder / "journal.json"), readiness)
    return telemetry.registry


def of_both() -> CollectorRegistry:
    registry = daemon_registry()
    ApiRequests(registry)
    CountingSink(Nobody(), registry)
    return registry


def exported(registry: CollectorRegistry) -> Described:
    """Name to type and labels of every family, whether it has samples yet or not."""
    found: Described = {}
    for collector in registry._collector_to_names:
        for family in collector.collect():
            parent: Any = collector if hasattr(collector, "_labelnames") else family
            labels = frozenset(getattr(parent, "_labelnames", ()))
            name = f"{family.name}_total" if family.type == "counter" else family.name
            found[name] = (family.type, labels)
    return found


def rows(title: str) -> Iterator[list[str]]:
    part = PAGE.read_text().partition(f"## {title}\n")[2].partition("\n## ")[0]
    for line in part.splitlines():
        if line.startswith("| `"):
            yield [cell.strip() for cell in line.strip("|").split("|")]


def documented(title: str) -> Described:
    return {
        name: (kind, frozenset(re.findall(r"`(\w+)`", labels)))
        for names, kind, labels, _ in rows(title)
        for name in re.findall(r"`(\w+)`", names)
    }


@pytest.mark.parametrize("title", ["controller", "plugin", "both"])
def test_every_metric_is_documented_with_its_type_and_labels_and_no_other(
    title: str, tmp_path: Path
) -> None:
    registry, heading = {
        "controller": (of_controller(), "Metrics of the controller"),
        "plugin": (of_plugin(tmp_path), "Metrics of the plugin"),
        "both": (of_both(), "Metrics of both"),
    }[title]
    assert documented(heading) == exported(registry), f"docs/observability.md, '{heading}'"


def test_every_example_asks_for_metrics_and_values_that_exist(tmp_path: Path) -> None:
    names = {
        f"{name}{suffix}"
        for registry in (of_controller(), of_plugin(tmp_path), of_both())
        for name, (kind, _) in exported(registry).items()
        for suffix in (("_bucket", "_sum", "_count") if kind == "histogram" else ("",))
    }
    blocks = re.findall(r"```promql\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    text = re.sub(r"#.*", "", "\n".join(blocks))
    asked = set(re.findall(r"mig_dra_\w+", text))
    assert "mig_dra_claim_info" in asked
    assert asked <= names
    assert set(re.findall(r'reason="(\w+)"', text)) <= {*Reason, *NodeReason}


CALLED = {
    "controller": (ControllerMetrics, "metrics"),
    "kubeletplugin": (NodeObserver, "(?:observer|metrics)"),
}


@pytest.mark.parametrize("package", CALLED)
def test_every_notice_is_given(package: str) -> None:
    metrics, name = CALLED[package]
    heard = vars(metrics).keys() - vars(Collector).keys()  # those are called by the registry
    heard = {notice for notice in heard if not notice.startswith("_")}
    code = "\n".join(path.read_text() for path in (ROOT / package).rglob("*.py"))
    silent = sorted(n for n in heard if not re.search(rf"{name}\.{n}\b", code))
    assert not silent, (
        f"nobody in {package}/ calls {silent} of {metrics.__name__}, and what counts it stays at "
        "0: call it where it happens"
    )


def test_every_action_is_explained() -> None:
    (row,) = (r for r in rows("Metrics of the plugin") if "recovery_actions" in r[0])
    assert {action.value for action in Action} <= set(re.findall(r"`(\w+)`", row[-1]))
