"""The page in the cluster, with the chart's own rights: readers see what the API server says."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from dra.common.resources import Obj
from hack.cluster.api import Api
from hack.cluster.chart import NAMESPACE, pod_spec, render
from hack.cluster.controlplane import ControlPlane, write_kubeconfig
from hack.cluster.installation import Installation, apply, path
from tests.cli.page.scenes import CONDITION
from tests.cli.page.served import Page, running_program, running_ui
from tests.cluster.harness.accounts import acting, token
from tests.cluster.rbac.requests import MERGE, refusal

ACCOUNT = "mig-dra-driver-nvidia-mig-page"
VALUES = {"page": {"enabled": True}}
RBAC = "rbac.authorization.k8s.io"


@pytest.fixture
def account(installation: Installation, admin: Api) -> Iterator[str]:
    """The page's account as the chart makes it."""
    objects = [
        each
        for each in render(VALUES)
        if each["metadata"]["name"] == ACCOUNT and each["kind"] != "Deployment"
    ]
    for each in objects:
        apply(admin, each)
    yield ACCOUNT
    for each in objects:
        admin.request("DELETE", path(each))


@contextlib.contextmanager
def reader(admin: Api, name: str, *resources: str, namespace: str = "") -> Iterator[None]:
    """An account that may list some kinds."""
    kind = "Role" if namespace else "ClusterRole"
    where = {"namespace": namespace} if namespace else {}
    rule = {"apiGroups": ["*"], "resources": [*resources], "verbs": ["list", "watch"]}
    subject = {"kind": "ServiceAccount", "name": name, "namespace": NAMESPACE}
    ref = {"apiGroup": RBAC, "kind": kind, "name": name}
    metadata = {"name": name, "namespace": NAMESPACE}
    made: list[Obj] = [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata},
        {"kind": kind, "metadata": {"name": name, **where}, "rules": [rule]},
        {"kind": f"{kind}Binding", "metadata": {"name": name, **where}, "roleRef": ref},
    ]
    made[2]["subjects"] = [subject]
    for each in made:
        each.setdefault("apiVersion", f"{RBAC}/v1")
        apply(admin, each)
    yield
    for each in made:
        admin.request("DELETE", path(each))


@contextlib.contextmanager
def waiting_pod(admin: Api) -> Iterator[None]:
    container = {"name": "c", "image": "i"}
    spec = {"containers": [container], "schedulerName": "nobody"}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "waits"}, "spec": spec}
    admin.create(pod)
    condition = {"type": CONDITION, "status": "False", "reason": "NoRoom", "message": "no room"}
    body = {"status": {"conditions": [condition | {"lastTransitionTime": "2026-01-02T03:04:05Z"}]}}
    admin.request("PATCH", "/api/v1/namespaces/default/pods/waits/status", body=body, content=MERGE)
    yield
    admin.delete("Pod", "waits")


def seen(page: Page, token: str, namespace: str = "") -> tuple[set[str], list[str], list[str]]:
    """Nodes, pods that wait, and kinds of which not all are shown."""
    found = page.loaded(token=token, namespace=namespace)
    nodes = {node["name"] for node in found["nodes"]}
    return nodes, [each["name"] for each in found["waiting"]["items"]], found["hidden"]


def test_readers_see_what_a_real_api_server_allows_them(
    installation: Installation,
    plane: ControlPlane,
    account: str,
    foreign_mignode: str,
    tmp_path: Path,
) -> None:
    admin = installation.api
    config = tmp_path / "config"
    given = token(installation, account)
    write_kubeconfig(config, server=plane.server, certificate=plane.certificate, token=given)
    kinds = ("mignodes", "resourceclaims", "pods", "events")
    with contextlib.ExitStack() as stack:
        stack.enter_context(waiting_pod(admin))
        stack.enter_context(reader(admin, "sees-all", *kinds))
        stack.enter_context(reader(admin, "sees-all-kinds", "*"))
        stack.enter_context(reader(admin, "sees-gpus", "mignodes"))
        stack.enter_context(reader(admin, "sees-one", "pods", namespace="default"))
        (container,) = pod_spec(render(VALUES), "page")["containers"]
        assert container["command"] == ["python", "-m", "cli.page"]
        flags = [each for each in container["args"] if not each.startswith("--port=")]
        page = stack.enter_context(running_program(config, *flags))
        assert seen(page, token(installation, "sees-all")) == ({"node-b"}, ["waits"], [])
        others = ["resourceclaims.resource.k8s.io", "pods", "events"]
        assert seen(page, token(installation, "sees-gpus"), "default") == ({"node-b"}, [], others)
        one = token(installation, "sees-one")
        assert seen(page, one, "default")[:2] == (set(), ["waits"])
        assert seen(page, one, "kube-system")[:2] == (set(), [])
        assert seen(page, token(installation, "default"), "default")[:2] == (set(), [])
        asked = "/why?pod=default/waits"
        why = page.ask(asked, token=token(installation, "sees-all-kinds"))
        assert (why.status, why.json["state"], why.json["unread"]) == (200, "Waiting", []), why
        assert page.ask(asked, token=token(installation, "default")).status == 403
        # Of kubectl mig ui the reader is its user, and the server itself refuses.
        own = tmp_path / "own"
        write_kubeconfig(own, server=plane.server, certificate=plane.certificate, token=one)
        with running_ui(own, "-n", "default") as mine:
            assert seen(mine, mine.token) == (set(), ["waits"], ["mignodes.mig.dra.dev", *others])
        for nobody in ("", "nobody's"):
            assert page.ask("/data", token=nobody).status == 401
        assert page.ask("/data", token=given[:-4]).status == 401


def test_the_page_itself_may_write_nothing(
    installation: Installation, account: str, foreign_mignode: str
) -> None:
    own = acting(installation, account)
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}}
    for method, where in (
        ("POST", "/api/v1/namespaces/default/pods"),
        ("DELETE", foreign_mignode),
        ("GET", "/api/v1/secrets"),
        ("GET", "/api/v1/configmaps"),
        ("POST", "/api/v1/namespaces/default/events"),
    ):
        body = pod if method == "POST" else None
        assert refusal(own, method, where, body=body)[0] == 403
