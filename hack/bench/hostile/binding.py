"""Pods that need more than room, on a real control plane.

A row for each need: how many pods there were, how many were bound and after how long, and how often
the controller wrote the status of a claim for each: once where it knows what kube-scheduler takes.
There is no kubelet: a pod that is bound has been taken. The zone ``near`` is a twentieth of the
nodes. The simulator's scheduler judges none of these needs, so the binaries are needed
(``KUBEBUILDER_ASSETS``).
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from api.crds import mignode_definition
from dra.common.resources import Obj
from dra.gpu.mignode import to_mignode
from dra.gpu.names import class_name
from hack.bench.control import objects
from hack.bench.fleets.fleet import geometry
from hack.bench.hostile import needs
from hack.cluster.api import ApiError
from hack.cluster.binaries import Binaries
from hack.cluster.driver.chart import NAMESPACE
from hack.cluster.errors import ClusterError
from hack.cluster.machine.processes import Process
from hack.cluster.nodes import add_fake_node
from hack.cluster.plane import credentials
from hack.cluster.plane.controlplane import ControlPlane
from hack.cluster.waiting import wait_for

_PATIENCE_SECONDS = 60.0
_OWNER = {"apiVersion": "v1", "kind": "ConfigMap"}


@contextmanager
def _site(control_plane: ControlPlane, nodes: int, checkout: Path) -> Iterator[list[str]]:
    """Nodes with eight GPUs each, and the controller of ``checkout``; yields their names."""
    api, shape = control_plane.api, geometry("A100-SXM4-80GB")
    api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    api.create(mignode_definition())

    def served() -> bool:
        with suppress(ApiError):
            return api.list("MigNode") == []
        return False

    wait_for("MigNode", served)
    names = [f"fake-{n:03}" for n in range(nodes)]
    for number, name in enumerate(names):
        zone = "near" if number >= nodes - max(1, nodes // 20) else "far"
        add_fake_node(api, name, cpu=str(needs.NODE_CPU), labels={needs.ZONE: zone})
        body = to_mignode(objects.inventory(name, shape))
        api.create({k: v for k, v in body.items() if k != "status"})
        api.patch("MigNode", name, {"status": body["status"]}, subresource="status")
    small = shape.profiles[0].name
    template = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate"}
    spec = {"spec": objects.claim_spec(small)}
    api.create({**template, "metadata": {"name": "slice"}, "spec": spec})
    kubeconfig = str(control_plane.kubeconfig(credentials.MIG_CONTROLLER))
    command = [sys.executable, "-m", "controller", "--kubeconfig", kubeconfig]
    process = Process(
        "controller",
        command,
        logs=control_plane.logs,
        within=lambda: ["env", "-C", str(checkout)],
    )
    process.start()
    try:
        wait_for("classes", lambda: api.find("DeviceClass", class_name(small)), timeout=60)
        yield names
    finally:
        process.stop()


def _row(control_plane: ControlPlane, need: needs.Need, names: list[str], *, pods: int) -> str:
    api, mark = control_plane.api, control_plane.audit.mark()
    need.before(api, names)
    bodies = need.pods(pods)
    if need.owned:
        owner = api.create({**_OWNER, "metadata": {"generateName": "owner-"}})
        for body in bodies:
            body["metadata"]["ownerReferences"] = [_controlled_by(owner)]
    started = time.monotonic()
    for body in bodies:
        api.create(body)
    wanted = {body["metadata"]["name"] for body in bodies}

    def bound() -> set[str]:
        found = api.list("Pod")
        return {p["metadata"]["name"] for p in found if p["spec"].get("nodeName")} & wanted

    with suppress(ClusterError):
        wait_for("bound pods", lambda: bound() == wanted, timeout=_PATIENCE_SECONDS)
    took, served = time.monotonic() - started, len(bound())
    writes = control_plane.audit.writes(since=mark, user=credentials.MIG_CONTROLLER.name)
    made = sum(w.resource == "resourceclaims/status" and w.status < 300 for w in writes)  # noqa: PLR2004
    for body in api.list("Pod"):
        api.delete("Pod", body["metadata"]["name"], grace=0)
    wait_for("end of the claims", lambda: not api.list("ResourceClaim"), timeout=60)
    return f"{need.name:<20}{pods:>5}{served:>7}{took:>9.1f}{made:>8}{made / pods:>9.2f}"


def _controlled_by(owner: Obj) -> Obj:
    named = {key: owner["metadata"][key] for key in ("name", "uid")}
    return {**_OWNER, **named, "controller": True}


def run(
    binaries: Binaries,
    *,
    nodes: int,
    pods: int,
    only: tuple[str, ...],
    checkouts: Sequence[Path],
) -> None:
    """Print a table for each checkout."""
    rows = [need for need in needs.NEEDS if not only or need.name.startswith(only)]
    for checkout in checkouts:
        with tempfile.TemporaryDirectory(prefix="mighostile", dir="/tmp") as folder:
            users = (credentials.MIG_CONTROLLER,)
            with (
                ControlPlane(binaries, Path(folder), users=users) as control_plane,
                _site(control_plane, nodes, checkout) as names,
            ):
                print(f"{checkout}\n{'need':<20} pods  bound  seconds  writes  per pod")
                for need in rows:
                    print(_row(control_plane, need, names, pods=pods), flush=True)
