"""Parts of the chart that make claims of limits: a policy, or before 1.36 the webhook."""

from __future__ import annotations

from pathlib import Path

import pytest

from dra.common.resources import Obj
from hack.cluster.chart import find, pod_spec, render
from tests.deploy.chart.charts import VALUES, rendered, rendered_before_policies

POLICY, WEBHOOK = "MutatingAdmissionPolicy", "MutatingWebhookConfiguration"
FLAG = "--mutating-configuration="
SUFFIX = "pod-limits"


def kinds(objects: list[Obj]) -> set[str]:
    """Kinds of what makes claims of limits."""
    return {
        each["kind"]
        for each in objects
        if each["metadata"]["name"].endswith(SUFFIX) or each["kind"] == WEBHOOK
    }


@pytest.mark.parametrize("name", VALUES)
def test_the_policy_is_there_and_no_webhook_besides(name: str) -> None:
    assert kinds(rendered(name)) == {POLICY, f"{POLICY}Binding"}


def test_neither_is_there_where_nobody_wants_it(tmp_path: Path) -> None:
    off: Obj = {"podLimits": {"enabled": False}, "webhook": {"enabled": True}}
    assert kinds(render(off)) == set()
    assert kinds(rendered_before_policies(tmp_path, off)) == set()


@pytest.mark.parametrize("enabled", [True, False])
def test_before_there_were_policies_the_webhook_does_it(tmp_path: Path, *, enabled: bool) -> None:
    objects = rendered_before_policies(tmp_path, {"webhook": {"enabled": enabled}})
    assert kinds(objects) == ({WEBHOOK} if enabled else set())
    if enabled:
        (container,) = pod_spec(objects, "webhook")["containers"]
        name = find(objects, WEBHOOK)["metadata"]["name"]
        assert f"{FLAG}{name}" in container["args"]


def test_both_are_asked_for_the_same_pods_of_the_same_namespaces(tmp_path: Path) -> None:
    values: Obj = {"webhook": {"enabled": True}, "driverName": "a.example"}
    (hook,) = find(rendered_before_policies(tmp_path, values), WEBHOOK)["webhooks"]
    policy = find(render(values), POLICY, SUFFIX)["spec"]
    binding = find(render(values), f"{POLICY}Binding", SUFFIX)["spec"]
    assert hook["matchConditions"] == policy["matchConditions"]
    assert hook["rules"] == policy["matchConstraints"]["resourceRules"]
    assert hook["namespaceSelector"] == binding["matchResources"]["namespaceSelector"]
    assert hook["namespaceSelector"] == {"matchLabels": {"a.example/limits": "claims"}}
    assert hook["failurePolicy"] == policy["failurePolicy"] == "Fail"
    assert hook["reinvocationPolicy"] == policy["reinvocationPolicy"] == "Never"
