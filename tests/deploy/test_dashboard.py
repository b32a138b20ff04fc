"""The dashboard and the rules name metrics and labels that the programs have."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from dra.claims.reasons import NodeReason, Reason
from dra.common.resources import Obj
from hack.cluster.chart import CHART, find
from hack.handbook import registry_of_both, registry_of_controller, registry_of_plugin
from tests.deploy.chart.charts import rendered
from tests.deploy.test_objectives import PROMTOOL, RULES, every_rule
from tests.docs.monitoring.test_observability import PAGE, Described, exported

DASHBOARD: Obj = json.loads((CHART / "files" / "dashboard.json").read_text())
SCRAPED = {"node", "instance", "job", "pod", "namespace"}
"""Labels that Prometheus, or the chart's PodMonitor, adds to every series."""
NOT_OF_TENANTS = {"namespace", "node", "gpu", "product", "profile", "device_class"} | {
    *("state", "reason", "result", "outcome", "le")
}
"""Labels whose values tenants do not choose, but the name of their namespace: a DNS label."""
HARMLESS = {"row", "stat", "timeseries", "bargauge"}
"""Panels of Grafana that show a series' labels as text, and no HTML."""


def panels() -> list[Obj]:
    return [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def queries() -> Iterator[tuple[Obj, str]]:
    """Panels, each with a query as Prometheus gets it."""
    for panel in panels():
        for target in panel["targets"]:
            text = target["expr"].replace("$__rate_interval", "2m").replace("$node", ".*")
            yield panel, text


def known(folder: Path) -> Described:
    """Every series of the programs with its labels, and those that rules record."""
    found: Described = {}
    for registry in (registry_of_controller(), registry_of_plugin(folder), registry_of_both()):
        for name, (kind, labels) in exported(registry).items():
            if kind != "histogram":
                found[name] = kind, labels
                continue
            found |= {f"{name}{end}": (kind, labels) for end in ("_sum", "_count")}
            found[f"{name}_bucket"] = kind, labels | {"le"}
    for rule in every_rule():
        if "record" in rule:
            found[rule["record"]] = "gauge", frozenset()
    return found


def documented() -> str:
    blocks = re.findall(r"```promql\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    return re.sub(r"#.*", "", "\n".join(blocks))


def find_unknown(text: str, of: Described) -> Iterator[str]:
    """Names of metrics and labels in an expression that nothing has."""
    labels = set(SCRAPED)
    for name, matchers in re.findall(r"\b(mig_dra[\w:]+)(?:\{([^}]*)\})?", text):
        if name not in of:
            yield name
            continue
        own = of[name][1]
        labels |= own
        for label, value in re.findall(r"(\w+)\s*[!=]~?\s*[\"']([^\"']*)", matchers):
            if label not in own | SCRAPED:
                yield f"{name}{{{label}}}"
            if label == "reason" and value not in {*Reason, *NodeReason, "Leaving"}:
                yield f'{name}{{reason="{value}"}}'
    for listed in re.findall(r"\b(?:by|on|group_left)\s*\(([^)]*)\)", text):
        yield from {each for each in re.findall(r"\w+", listed) if each not in labels}


def test_metrics_and_labels_of_dashboard_rules_and_handbook_are_those_of_the_programs(
    tmp_path: Path,
) -> None:
    described = known(tmp_path)
    texts = [text for _, text in queries()] + [rule["expr"] for rule in every_rule()]
    joins = documented().partition("label_replace")  # has labels of dcgm-exporter
    texts += [joins[0], joins[2].partition("\n\n")[2]]
    texts += re.findall(r"label_values\((.*), \w+\)", json.dumps(DASHBOARD["templating"]))
    assert len(texts) > 40
    assert sorted({each for text in texts for each in find_unknown(text, described)}) == []


def test_a_legend_names_labels_that_its_query_leaves() -> None:
    for panel in panels():
        for target in panel["targets"]:
            named = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            left = re.findall(r"\bby \(([^)]*)\)", target["expr"])
            assert named <= set(re.findall(r"\w+", left[0] if left else "")), panel["title"]


def test_no_query_leaves_a_name_that_tenants_choose_but_that_of_their_namespace() -> None:
    for panel, text in queries():
        left = {n for by in re.findall(r"\bby \(([^)]*)\)", text) for n in re.findall(r"\w+", by)}
        assert left <= NOT_OF_TENANTS, panel["title"]
        assert re.search(r"\b(sum|max)\b", text), panel["title"]  # all other labels are dropped


def test_no_panel_renders_what_a_series_says_other_than_as_text() -> None:
    assert {panel["type"] for panel in DASHBOARD["panels"]} <= HARMLESS
    text = json.dumps(DASHBOARD)
    assert not re.findall(
        r"html|markdown|\$\{__(?:field|series|value|data)|:raw|\blinks\": \[\{", text
    )
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])


def test_the_chart_hands_the_dashboard_to_grafanas_sidecar_where_it_is_asked_to() -> None:
    named = {"kind": "ConfigMap", "end": "-dashboard"}
    for which, number in (("defaults", 0), ("everything", 1)):
        found = [
            each
            for each in rendered(which)
            if each["kind"] == named["kind"] and each["metadata"]["name"].endswith(named["end"])
        ]
        assert len(found) == number
    [made] = found
    assert made["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert json.loads(made["data"]["dra-driver-nvidia-mig.json"]) == DASHBOARD
    assert find(rendered("everything"), "PrometheusRule")


@pytest.mark.skipif(PROMTOOL is None, reason="promtool, of Debian's prometheus, is not installed")
def test_promtool_reads_every_rule_and_every_query(tmp_path: Path) -> None:
    assert PROMTOOL is not None
    asked = [{"record": f"query:{n}", "expr": text} for n, (_, text) in enumerate(queries())]
    made = tmp_path / "queries.yaml"
    made.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": asked}]}))
    command = [PROMTOOL, "check", "rules", str(RULES), str(made)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"SUCCESS: {len(asked)} rules found" in done.stdout
