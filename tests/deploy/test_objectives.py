"""The service-level objectives: rules that Prometheus reads, and a runbook for each alert."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from prometheus_client import CollectorRegistry

from dra.common.program import page as page_address
from dra.common.resources import Obj
from hack.cluster.chart import CHART, find
from hack.handbook import registry_of_controller, registry_of_plugin
from tests.deploy.chart.charts import rendered
from tests.docs.monitoring.test_observability import PAGE, exported

RULES = CHART / "files" / "objectives.yaml"
CASES = Path(__file__).parent / "objectives.yaml"
PROMTOOL = shutil.which("promtool")


def every_rule() -> list[Obj]:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def alerts() -> list[Obj]:
    return [rule for rule in every_rule() if "alert" in rule]


def series(registry: CollectorRegistry) -> set[str]:
    """Names of the series that Prometheus has of a program."""
    return {
        f"{name}{suffix}"
        for name, (kind, _) in exported(registry).items()
        for suffix in (("_bucket", "_sum", "_count") if kind == "histogram" else ("",))
    }


def test_every_rule_reads_metrics_or_rules_that_exist(tmp_path: Path) -> None:
    known = series(registry_of_controller()) | series(registry_of_plugin(tmp_path))
    known |= {rule["record"] for rule in every_rule() if "record" in rule}
    for rule in every_rule():
        read = set(re.findall(r"mig_dra[\w:]+", rule["expr"]))
        assert read
        assert read <= known, rule


def test_every_bound_is_one_that_the_histogram_has(tmp_path: Path) -> None:
    bounds = set()
    for registry in (registry_of_controller(), registry_of_plugin(tmp_path)):
        for collector in registry._collector_to_names:
            name = getattr(collector, "_name", "")
            bounds |= {(name, str(b)) for b in getattr(collector, "_upper_bounds", ())}
    asked = {
        (name, bound)
        for rule in every_rule()
        for name, bound in re.findall(r'(mig_dra_\w+)_bucket\{[^}]*le="([^"]+)"', rule["expr"])
    }
    assert len(asked) == 2
    assert asked <= bounds


@pytest.mark.parametrize("alert", alerts(), ids=lambda alert: alert["alert"])
def test_every_alert_has_a_runbook_and_a_row(alert: Obj) -> None:
    page, _, anchor = alert["annotations"]["runbook_url"].partition("#")
    text = PAGE.read_text()
    assert page == page_address(PAGE.name)
    assert anchor == alert["alert"].lower()
    assert f"### {alert['alert']}\n" in text
    assert f"| [{alert['alert']}](#{anchor}) |" in text


def test_the_chart_hands_the_rules_to_the_prometheus_operator_where_it_is_asked_to() -> None:
    assert not [each for each in rendered("defaults") if each["kind"] == "PrometheusRule"]
    rule = find(rendered("everything"), "PrometheusRule")
    assert rule["metadata"]["labels"]["release"] == "prom"
    assert rule["spec"] == yaml.safe_load(RULES.read_text())


def test_alerts_about_nodes_name_them() -> None:
    """The PodMonitor gives every series its node; a sum keeps the node only if it is told to."""
    relabeled = find(rendered("everything"), "PodMonitor")["spec"]["podMetricsEndpoints"][0]
    assert {r["targetLabel"] for r in relabeled["relabelings"]} == {"node"}
    (unavailable,) = (a for a in alerts() if a["alert"] == "MigPlacementsUnavailable")
    assert "sum by (node, gpu) " in unavailable["expr"]
    assert "{{ $labels.node }}" in unavailable["annotations"]["summary"]
    recommended = [
        line
        for block in re.findall(r"```promql\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
        for line in block.splitlines()
        if re.match(r"sum by \((\w+, )*(gpu|operation)\b", line)
    ]
    assert len(recommended) == 2
    assert all(line.startswith("sum by (node, ") for line in recommended)


@pytest.mark.skipif(PROMTOOL is None, reason="promtool, of Debian's prometheus, is not installed")
def test_the_alerts_fire_as_prometheus_reads_them(tmp_path: Path) -> None:
    assert PROMTOOL is not None
    shutil.copy(RULES, tmp_path / RULES.name)
    shutil.copy(CASES, tmp_path / "cases.yaml")
    command = [PROMTOOL, "test", "rules", "cases.yaml"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
