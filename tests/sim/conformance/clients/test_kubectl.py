"""kubectl as people use it, without flags that would hide a difference."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from tests.helpers.waiting import PATIENCE, wait_for
from tests.sim.conformance.helpers.builders import claim, config_map, pod

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.sim.conformance.helpers.client import Api

Run = "Callable[..., str]"


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


@pytest.fixture
def following(command: list[str]) -> Iterator[Callable[..., Iterator[str]]]:
    """Start kubectl with some arguments; gives its lines as they come, and ends it at last."""
    started: list[subprocess.Popen[str]] = []

    def run(*arguments: str) -> Iterator[str]:
        started.append(
            subprocess.Popen(
                [*command, *arguments],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
        output = started[-1].stdout
        assert output is not None
        return output

    yield run
    for process in started:
        process.kill()
        process.communicate()


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


def test_apply_on_the_server_side(kubectl: Callable[..., str], namespace: str) -> None:
    command = ("apply", "-n", namespace, "--server-side", "-f", "-")
    assert kubectl(*command, stdin=[config_map("m", x="1")]) == "configmap/m serverside-applied\n"
    other = (*command[:-2], "--field-manager=other", "-f", "-")
    said = kubectl(*other, stdin=[config_map("m", x="2")], fails=True)
    assert 'conflict with "kubectl": .data.x' in said
    forced = (*other[:-2], "--force-conflicts", "-f", "-")
    kubectl(*forced, stdin=[config_map("m", x="2")])


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


def test_describe_tells_of_the_object_and_its_events(
    api: Api, kubectl: Callable[..., str], namespace: str
) -> None:
    created = api.post(f"/api/v1/namespaces/{namespace}/pods", pod("p")).ok()
    about = {"kind": "Pod", "apiVersion": "v1", "namespace": namespace, "name": "p"}
    about["uid"] = created["metadata"]["uid"]
    event = {
        "metadata": {"name": "e"},
        "involvedObject": about,
        "type": "Warning",
        "reason": "NoPlacement",
        "message": "no GPU has a free 1g.5gb",
        "firstTimestamp": "2026-11-21T03:31:30Z",
        "lastTimestamp": "2026-11-21T03:31:30Z",
        "count": 1,
        "source": {"component": "mig.dra.dev/controller"},
    }
    api.post(f"/api/v1/namespaces/{namespace}/events", event).ok()
    said = kubectl("describe", "-n", namespace, "pod", "p")
    assert "no GPU has a free 1g.5gb" in said
    assert "Status:           Pending" in said
    events = kubectl("get", "events", "-n", namespace)
    assert "NoPlacement" in events
    assert "pod/p" in events


def test_patch_label_and_annotate(kubectl: Callable[..., str], namespace: str) -> None:
    kubectl("apply", "-n", namespace, "-f", "-", stdin=[config_map("m", x="1")])
    target = ("-n", namespace, "configmap", "m")
    kubectl("patch", *target, "--type=merge", "-p", '{"data":{"x":"2"}}')
    kubectl("patch", *target, "--type=json", "-p", '[{"op":"add","path":"/data/y","value":"3"}]')
    kubectl("patch", *target, "-p", '{"data":{"z":"4"}}')
    kubectl("label", *target, "a=b")
    kubectl("annotate", *target, "c=d")
    found = json.loads(kubectl("get", *target, "-o", "json"))
    assert found["data"] == {"x": "2", "y": "3", "z": "4"}
    assert found["metadata"]["labels"] == {"a": "b"}
    assert found["metadata"]["annotations"]["c"] == "d"


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


def test_delete_waits_until_the_object_is_gone(
    api: Api, kubectl: Callable[..., str], namespace: str
) -> None:
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    api.post(path, config_map("m")).ok()
    said = kubectl("delete", "-n", namespace, "cm", "m", "--timeout=90s")
    assert 'configmap "m" deleted' in said
    api.get(f"{path}/m").refused(404)
    assert "not found" in kubectl("delete", "-n", namespace, "cm", "m", fails=True)


def test_watching_prints_rows_as_they_come(
    api: Api, following: Callable[..., Iterator[str]], namespace: str
) -> None:
    path = f"/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaims"
    api.post(path, claim("c")).ok()
    lines = following("get", "-n", namespace, "resourceclaims", "-w")
    assert [next(lines).split()[0] for _ in range(2)] == ["NAME", "c"]
    api.post(path, claim("d")).ok()
    assert next(lines).split()[0] == "d"


def test_api_resources_lists_ours(kubectl: Callable[..., str]) -> None:
    lines = kubectl("api-resources", "--api-group=resource.k8s.io", "-o", "name").split()
    wanted = {"deviceclasses", "resourceclaims", "resourceclaimtemplates", "resourceslices"}
    assert {line.partition(".")[0] for line in lines} >= wanted


def test_create_delete_and_replace_from_a_file(kubectl: Callable[..., str], namespace: str) -> None:
    objects = [config_map("m", x="1")]
    assert kubectl("create", "-n", namespace, "-f", "-", stdin=objects) == "configmap/m created\n"
    said = kubectl("create", "-n", namespace, "-f", "-", stdin=objects, fails=True)
    assert "AlreadyExists" in said
    replaced = kubectl("replace", "-n", namespace, "-f", "-", stdin=[config_map("m", x="2")])
    assert replaced == "configmap/m replaced\n"
    kubectl("delete", "-n", namespace, "-f", "-", stdin=objects)


def test_simple_kinds_are_created_from_flags(
    kubectl: Callable[..., str], namespace: str, unique: str
) -> None:
    """These bodies come as protobuf, which is why they have a test of their own."""
    kubectl("create", "namespace", f"{unique}-x")
    kubectl("delete", "namespace", f"{unique}-x", "--wait=false")
    literals = ("--from-literal=x=1", "--from-literal=y=a b")
    kubectl("create", "-n", namespace, "configmap", "m", *literals)
    kubectl("create", "-n", namespace, "secret", "generic", "s", *literals)
    kubectl("create", "-n", namespace, "serviceaccount", "a")
    found = json.loads(kubectl("get", "-n", namespace, "cm/m", "secret/s", "sa/a", "-o", "json"))
    config, secret, account = found["items"]
    assert config["data"] == {"x": "1", "y": "a b"}
    assert secret["data"] == {"x": "MQ==", "y": "YSBi"}
    assert account["metadata"]["name"] == "a"


def test_drain_cordons_and_evicts(
    api: Api, following: Callable[..., Iterator[str]], namespace: str, unique: str
) -> None:
    api.post("/api/v1/nodes", {"metadata": {"name": unique}}).ok()
    path = f"/api/v1/namespaces/{namespace}/pods"
    api.post(path, pod("p", nodeName=unique, terminationGracePeriodSeconds=5)).ok()
    said = following("drain", unique, "--force")
    assert any(f"evicting pod {namespace}/p" in line for line in said)
    leaving = wait_for(
        "the eviction",
        lambda: api.get(f"{path}/p").ok()["metadata"].get("deletionGracePeriodSeconds"),
    )
    assert leaving == 5
    assert api.get(f"/api/v1/nodes/{unique}").ok()["spec"]["unschedulable"] is True
    api.delete(f"{path}/p", {"gracePeriodSeconds": 0}).ok()
    api.delete(f"/api/v1/nodes/{unique}").ok()
