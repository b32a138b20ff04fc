"""Who may reach and do what in an installation of the chart."""

from __future__ import annotations

import pytest

from dra.common.resources import Obj
from hack.cluster.chart import find, kubelet_rights, render
from tests.deploy.chart.charts import MONITORING, VALUES, rendered, rules


def test_only_the_metrics_can_be_reached_and_only_by_who_is_named() -> None:
    (anybody,) = find(rendered("defaults"), "NetworkPolicy")["spec"]["ingress"]
    assert anybody == {"ports": [{"protocol": "TCP", "port": "metrics"}]}
    (named,) = find(rendered("everything"), "NetworkPolicy")["spec"]["ingress"]
    assert named["from"] == [{"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}]


def test_prometheus_finds_both_daemons_where_it_is_asked_for() -> None:
    assert [each for each in rendered("defaults") if each["apiVersion"] == MONITORING] == []
    monitor = find(rendered("everything"), "PodMonitor")
    assert monitor["metadata"]["labels"]["release"] == "prom"
    for kind in ("Deployment", "DaemonSet"):
        labels = find(rendered("everything"), kind)["spec"]["template"]["metadata"]["labels"]
        assert monitor["spec"]["selector"]["matchLabels"].items() <= labels.items()
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert (endpoint["port"], endpoint["path"]) == ("metrics", "/metrics")
    assert endpoint["honorLabels"] is True, "claims' namespaces and pods, not the plugin's"


@pytest.mark.parametrize("name", VALUES)
def test_no_role_grants_a_wildcard_or_secrets(name: str) -> None:
    for each in rendered(name):
        for rule in each.get("rules", []) if each["kind"].endswith("Role") else []:
            assert "*" not in [*rule["apiGroups"], *rule["resources"], *rule["verbs"]]
            assert not {"configmaps", "secrets", "pods/exec"} & set(rule["resources"])


def test_the_plugin_may_offer_devices_only_where_the_scheduler_allocates() -> None:
    def refuses(name: str) -> bool:
        policies = [e for e in rendered(name) if e["kind"] == "ValidatingAdmissionPolicy"]
        (policy,) = (p for p in policies if p["metadata"]["name"].endswith("-kubelet-plugin"))
        rules = policy["spec"]["validations"]
        return any("ResourceSlices have no devices" in r.get("message", "") for r in rules)

    assert refuses("defaults")
    assert not refuses("scheduler")


@pytest.mark.parametrize("allowed", ["evictFailed", "defrag", "preemption", ""])
def test_the_controller_may_end_pods_only_where_the_administrator_allows_it(allowed: str) -> None:
    values: Obj = {"evictFailed": {"enabled": False}} | {allowed: {"enabled": True}}
    found = rules(render({name: value for name, value in values.items() if name}), "controller")
    granted = [rule["verbs"] for rule in found if "pods/eviction" in rule["resources"]]
    assert granted == ([["create"]] if allowed else [])
    deletes = any("delete" in rule["verbs"] for rule in found if "pods" in rule["resources"])
    assert deletes is (allowed == "preemption")


@pytest.mark.parametrize("allowed", [True, False])
def test_kubelets_may_get_claims_besides_unless_the_administrator_takes_that_away(
    *, allowed: bool
) -> None:
    objects = kubelet_rights({} if allowed else {"kubeletClaims": {"enabled": False}})
    granted = [rule for each in objects for rule in each.get("rules", ())]
    named = [who["name"] for each in objects for who in each.get("subjects", ())]
    only = {"apiGroups": ["resource.k8s.io"], "resources": ["resourceclaims"], "verbs": ["get"]}
    assert granted == ([only] if allowed else [])
    assert named == (["system:nodes"] if allowed else [])
