"""kubectl as people use it, without flags that would hide a difference."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from tests.helpers.waiting import PATIENCE
from tests.sim.conformance.helpers.builders import claim, config_map, pod

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.sim.conformance.helpers.client import Api


@pytest.fixture(scope="session")
def command(kubeconfig: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """How kubectl is called for the server."""
    beside = Path(sys.executable).with_name("kubectl")
    binary = str(beside) if beside.exists() else shutil.which("kubectl")
    if binary is None:
        pytest.skip("no kubectl")
    cache = tmp_path_factory.mktemp("kubectl-cache")
    return [binary, f"--kubeconfig={kubeconfig}", f"--cache-dir={cache}"]


@pytest.fixture(scope="session")
def kubectl(command: list[str]) -> Callable[..., str]:
    """Run kubectl with some arguments; gives what it prints."""

    def run(*arguments: str, stdin: Any = None, fails: bool = False) -> str:
        text = None if stdin is None else yaml.safe_dump_all(stdin)
        done = subprocess.run(
            [*command, *arguments],
            input=text,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert (done.returncode != 0) == fails, done.stderr
        return done.stdout + (done.stderr if fails else "")

    return run


def test_apply_creates_configures_and_leaves_alone(
    kubectl: Callable[..., str], namespace: str
) -> None:
    objects = [config_map("m", x="1"), pod("p")]
    where = ("-n", namespace, "-f", "-")
    assert kubectl("apply", *where, stdin=objects) == "configmap/m created\npod/p created\n"
    assert kubectl("apply", *where, stdin=objects) == "configmap/m unchanged\npod/p unchanged\n"
    changed = [config_map("m", other="2"), pod("p", activeDeadlineSeconds=60)]
    assert kubectl("apply", *where, stdin=changed) == "configmap/m configured\npod/p configured\n"
    found = json.loads(kubectl("get", "-n", namespace, "cm", "m", "-o", "json"))
    assert found["data"] == {"other": "2"}


def test_get_prints_tables(api: Api, kubectl: Callable[..., str], namespace: str) -> None:
    api.post(f"/api/v1/namespaces/{namespace}/pods", pod("p")).ok()
    api.post(f"/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaims", claim("c")).ok()
    header, row = kubectl("get", "-n", namespace, "pods", "-o", "wide").splitlines()
    assert header.split()[:5] == ["NAME", "READY", "STATUS", "RESTARTS", "AGE"]
    assert row.split()[:4] == ["p", "0/1", "Pending", "0"]
    header, row = kubectl("get", "-n", namespace, "resourceclaims").splitlines()
    assert header.split() == ["NAME", "STATE", "AGE"]
    assert row.split()[:2] == ["c", "pending"]
    assert yaml.safe_load(kubectl("get", "-n", namespace, "pod", "p", "-o", "yaml"))["spec"]


def test_wait_sees_conditions_and_deletions(
    api: Api, kubectl: Callable[..., str], namespace: str
) -> None:
    path = f"/api/v1/namespaces/{namespace}/pods"
    api.post(path, pod("p")).ok()
    ready = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
    api.strategic(f"{path}/p/status", ready).ok()
    target = ("-n", namespace, "pod/p", "--timeout=90s")
    assert kubectl("wait", *target, "--for=condition=Ready") == "pod/p condition met\n"
    phase = kubectl("wait", *target, "--for=jsonpath={.status.phase}=Pending")
    assert phase == "pod/p condition met\n"
    kubectl("delete", "-n", namespace, "pod", "p", "--wait=false")
    assert kubectl("wait", *target, "--for=delete", fails=False) in ("", "pod/p condition met\n")


def test_a_workload_is_scaled_and_shown_and_one_that_selects_other_pods_refused(
    kubectl: Callable[..., str], namespace: str
) -> None:
    labels = {"app": "a"}
    template = {"metadata": {"labels": labels}, "spec": pod("p")["spec"]}
    spec: dict[str, Any] = {
        "replicas": 2,
        "selector": {"matchLabels": labels},
        "template": template,
    }
    body = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}}
    where = ("-n", namespace)
    said = kubectl("apply", *where, "-f", "-", stdin=[{**body, "spec": spec}])
    assert said == "deployment.apps/web created\n", "nothing is warned of"
    assert kubectl("scale", *where, "deploy/web", "--replicas=5") == "deployment.apps/web scaled\n"
    assert kubectl("get", *where, "deploy").splitlines()[1].split()[:4] == ["web", "0/5", "0", "0"]
    assert kubectl("get", *where, "deploy", "web", "-o", "jsonpath={.metadata.generation}") == "2"
    image = ("set", "image", *where, "deploy/web", "main=other")
    kubectl(*image)
    found = json.loads(kubectl("get", *where, "deploy", "web", "-o", "json"))["spec"]
    (container,) = found["template"]["spec"]["containers"]
    asked = spec["template"]["spec"]["containers"][0] | {"image": "other"}
    assert container == container | asked, "but for what a server adds"
    wrong = {**spec, "selector": {"matchLabels": {"app": "b"}}}
    refused = kubectl("create", *where, "-f", "-", stdin=[{**body, "spec": wrong}], fails=True)
    assert "`selector` does not match template `labels`" in refused


def test_what_needs_a_running_program_is_refused_with_one_sentence(
    kubectl: Callable[..., str], namespace: str
) -> None:
    if os.environ.get("CONFORMANCE_KUBECONFIG"):
        pytest.skip("a real API server asks kubelet")
    kubectl("apply", "-n", namespace, "-f", "-", stdin=[pod("p")])
    sentence = "no program runs in the containers of a simulated cluster: kubectl logs "
    sentence += f"-n {namespace} p shows what they were given\n"
    running = ("pod", "p", "--subresource=status", "-p", '{"status": {"phase": "Running"}}')
    kubectl("-n", namespace, "patch", *running)
    for command in (("exec", "p", "--", "ls"), ("port-forward", "p", "1:1")):
        assert kubectl("-n", namespace, *command, fails=True).endswith(sentence)
