"""docs/observability.md names every metric with its type and labels, and fields of log lines."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.registry import Collector

from controller.report.metrics import ControllerMetrics
from dra.claims.reasons import NodeReason, Reason
from hack.handbook import (
    families,
    on_page_markdown,
    registry_of_both,
    registry_of_controller,
    registry_of_plugin,
)
from kubeletplugin.telemetry.observer import Action, NodeObserver

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs/observability.md"
Described = dict[str, tuple[str, frozenset[str]]]


def exported(registry: CollectorRegistry) -> Described:
    """Name to type and labels of every family, whether it has samples yet or not."""
    return {name: (kind, frozenset(labels)) for name, kind, labels, _ in families(registry)}


def rows(title: str) -> Iterator[list[str]]:
    """The rows of a section as ``make docs`` shows it."""
    page = on_page_markdown(PAGE.read_text())
    for line in page.partition(f"## {title}\n")[2].partition("\n## ")[0].splitlines():
        if line.startswith("| `"):
            yield [cell.strip() for cell in line.strip("|").split("|")]


def test_every_metric_is_documented_with_its_type_and_labels_and_no_other(tmp_path: Path) -> None:
    table = {
        name.strip("`"): (kind, frozenset(re.findall(r"`(\w+)`", labels)))
        for name, _, kind, labels, meaning in (row for row in rows("Metrics") if len(row) > 2)
        if len(meaning) > len("1 for each.")
    }
    registries = (registry_of_controller(), registry_of_plugin(tmp_path), registry_of_both())
    assert table == {k: v for registry in registries for k, v in exported(registry).items()}


def test_labels_are_explained_of_metrics_that_exist(tmp_path: Path) -> None:
    registries = (registry_of_controller(), registry_of_plugin(tmp_path), registry_of_both())
    known = {name for registry in registries for name in exported(registry)}
    named = {n for row in rows("Metrics") for n in re.findall(r"`(mig_dra_\w+)`", row[0])}
    assert named <= known


def test_every_example_asks_for_metrics_and_values_that_exist(tmp_path: Path) -> None:
    names = {
        f"{name}{suffix}"
        for registry in (registry_of_controller(), registry_of_plugin(tmp_path), registry_of_both())
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
    row = next(r for r in rows("Metrics") if "recovery_actions" in r[0])
    assert {action.value for action in Action} <= set(re.findall(r"`(\w+)`", row[-1]))
