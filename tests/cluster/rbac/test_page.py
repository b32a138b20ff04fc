"""``kubectl mig ui`` with the rights of its user on a real API server, which refuses the rest."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from dra.common.resources import Obj
from hack.cluster.api import Api
from hack.cluster.chart import NAMESPACE
from hack.cluster.controlplane import ControlPlane, write_kubeconfig
from hack.cluster.installation import Installation, apply, path
from tests.cli.page.scenes import CONDITION
from tests.cli.page.served import Page, running_ui
from tests.cluster.harness.accounts import token
from tests.cluster.rbac.requests import MERGE

RBAC = "rbac.authorization.k8s.io"


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


def seen(page: Page) -> tuple[set[str], list[str], list[str]]:
    """Nodes, pods that wait, and kinds of which not all are shown."""
    found = page.loaded()
    nodes = {node["name"] for node in found["nodes"]}
    return nodes, [each["name"] for each in found["waiting"]["items"]], found["hidden"]


def test_it_shows_what_a_real_api_server_allows_its_user(
    installation: Installation, plane: ControlPlane, foreign_mignode: str, tmp_path: Path
) -> None:
    admin = installation.api
    kinds = ("mignodes", "resourceclaims", "pods", "events")
    others = ["resourceclaims.resource.k8s.io", "pods", "events"]
    expected: dict[str, tuple[set[str], list[str], list[str]]] = {
        "sees-all": ({"node-b"}, ["waits"], []),
        "sees-gpus": ({"node-b"}, [], others),
        "sees-one": (set(), ["waits"], ["mignodes.mig.dra.dev", *others]),
        "default": (set(), [], ["mignodes.mig.dra.dev", *others]),
    }
    asked = "/why?pod=default/waits"
    with contextlib.ExitStack() as stack:
        stack.enter_context(waiting_pod(admin))
        stack.enter_context(reader(admin, "sees-all", *kinds))
        stack.enter_context(reader(admin, "sees-gpus", "mignodes"))
        stack.enter_context(reader(admin, "sees-one", "pods", namespace="default"))
        for name, shown in expected.items():
            own = tmp_path / name
            given = token(installation, name)
            write_kubeconfig(own, server=plane.server, certificate=plane.certificate, token=given)
            with running_ui(own, "-n", "default") as page:
                assert seen(page) == shown, name
                assert page.ask(asked).status == (200 if name == "sees-all" else 403), name
                assert page.ask("/data", token="").status == 401
