"""The dashboard and the rules name metrics and labels that the programs have, and show them.

Grafana itself is not run: its queries are, by Prometheus against a simulated cluster.
"""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import sys
import urllib.parse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
import yaml

from dra.claims.reasons import NodeReason, Reason
from dra.common.resources import DEVICE_CLASSES, PODS, RESOURCE_CLAIM_TEMPLATES, Obj
from hack.cluster.chart import CHART, find
from hack.handbook import registry_of_both, registry_of_controller, registry_of_plugin
from sim.cluster.cluster import Cluster, ClusterShape, running_cluster
from sim.processes import Process, Supervisor
from tests.deploy.chart.charts import rendered
from tests.deploy.test_objectives import PROMTOOL, RULES, every_rule
from tests.docs.monitoring.test_observability import PAGE, Described, exported
from tests.helpers.scrape import get, logged_port
from tests.helpers.waiting import wait_for
from tests.kubeletplugin.helpers.rig import exists

DASHBOARD: Obj = json.loads((CHART / "files" / "dashboard.json").read_text())
PROMETHEUS = shutil.which("prometheus")
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


# -- the queries, evaluated

LIMITS = {"devices": "6", "memory": "40Gi"}


@contextmanager
def observed(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """A simulated cluster whose daemons serve metrics."""
    spawn = Supervisor.spawn

    def with_metrics(self: Supervisor, name: str, arguments: Sequence[str], **more: Any) -> Process:
        if name.startswith(("plugin", "controller")):
            arguments = [*arguments, "--metrics-address", "127.0.0.1:0"]
        return spawn(self, name, arguments, **more)

    monkeypatch.setattr(Supervisor, "spawn", with_metrics)
    with running_cluster(ClusterShape(nodes=2)) as cluster:
        yield cluster


def targets(cluster: Cluster) -> list[Obj]:
    """The daemons' addresses, with the labels that the chart's PodMonitor gives."""
    found = []
    for name, child in cluster.supervisor.children.items():
        if name.startswith(("plugin", "controller")):
            port = wait_for("port", partial(logged_port, [child.log]))
            node = name.removeprefix("plugin-") if "plugin" in name else "node-1"
            found.append({"targets": [f"127.0.0.1:{port}"], "labels": {"node": node}})
    return found


@contextmanager
def prometheus(folder: Path, scraped: list[Obj]) -> Iterator[int]:
    """A Prometheus that scrapes every second; its port."""
    assert PROMETHEUS is not None
    job = {"job_name": "mig", "honor_labels": True, "static_configs": scraped}
    config = {"global": {"scrape_interval": "1s"}, "scrape_configs": [job]}
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(config))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        PROMETHEUS,
        f"--config.file={folder / 'prometheus.yaml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        yield port
    finally:
        process.terminate()
        process.wait()


def evaluated(port: int, query: str) -> list[Obj]:
    status, text = get(port, "/api/v1/query?" + urllib.parse.urlencode({"query": query}))
    assert status == HTTPStatus.OK, text
    found: list[Obj] = json.loads(text)["data"]["result"]
    return found


def template(name: str, count: int = 1, device_class: str = "mig-1g.5gb") -> Obj:
    exactly = {"deviceClassName": device_class, "count": count}
    devices = {"requests": [{"name": "r", "exactly": exactly}]}
    return {
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"spec": {"devices": devices}},
    }


def pod(name: str, of: str) -> Obj:
    claims = [{"name": "gpu", "resourceClaimTemplateName": of}]
    container = {"name": "main", "image": "none", "resources": {"claims": [{"name": "gpu"}]}}
    spec = {"resourceClaims": claims, "containers": [container], "terminationGracePeriodSeconds": 1}
    return {"metadata": {"name": name, "namespace": "default"}, "spec": spec}


@pytest.mark.timeout(400)
@pytest.mark.skipif(PROMETHEUS is None, reason="Debian's prometheus is not installed")
def test_every_query_has_data_on_a_cluster_at_work_unless_its_panel_says_why_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with observed(monkeypatch) as cluster:
        api, limits = cluster.api, {f"mig.dra.dev/{k}-per-namespace": v for k, v in LIMITS.items()}
        wait_for("the class", partial(exists, api, DEVICE_CLASSES, "mig-1g.5gb"))
        api.patch(DEVICE_CLASSES, "mig-1g.5gb", {"metadata": {"annotations": limits}})
        for made in (template("one"), template("two", 2), template("whole", 9, "mig-7g.40gb")):
            api.create(RESOURCE_CLAIM_TEMPLATES, made)
        with prometheus(tmp_path, targets(cluster)) as port:
            wait_for("scrapes", lambda: _is_up(port))
            api.create(PODS, pod("large", "whole"))
            held = 0
            for name, of, number in (("a", "one", 1), ("b", "two", 2), ("c", "two", 2)):
                api.create(PODS, pod(name, of))
                held += number
                is_there = f"sum(mig_dra_claim_info) == {held}"
                wait_for(is_there, partial(evaluated, port, is_there))
            for number, name in enumerate(("a", "b"), start=1):
                api.delete(PODS, name, namespace="default")
                is_gone = f"sum(mig_dra_unprepare_duration_seconds_count) == {number}"
                wait_for(is_gone, partial(evaluated, port, is_gone))
            empty = {}
            for panel, query in queries():
                if "Empty" in panel["description"] and not _has_numbers(port, query):
                    empty[query] = panel["description"]
                else:
                    wait_for(query, partial(_has_numbers, port, query))
    sys.stderr.write(json.dumps(empty, indent=1))  # shown by -rP
    assert len(empty) < len([*queries()]) / 3, empty


def _is_up(port: int) -> bool:
    try:
        is_ready = get(port, "/-/ready")[0] == HTTPStatus.OK
    except OSError:
        return False
    return is_ready and bool(evaluated(port, "count(up == 1) == 3"))


def _has_numbers(port: int, query: str) -> bool:
    """True if a series has a value; quantiles of what happened once only are not numbers."""
    return any(each["value"][1] != "NaN" for each in evaluated(port, query))
