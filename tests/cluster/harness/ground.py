"""Ground that the driver's daemons stand on: nodes, users, their namespace and resource."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from api.crds import mignode_definition
from hack.cluster import controlplane
from hack.cluster.api import Api, ApiError
from hack.cluster.binaries import Binaries
from hack.cluster.chart import NAMESPACE
from hack.cluster.controlplane import USUAL, ControlPlane, Setup
from sim.processes import wait_for

REAL_NODE = "real"
FAKE_NODES = ("fake-a", "fake-b")
FAKE = {"test/kubelet": "none"}
"""The label of the nodes that no kubelet serves."""
USERS = (controlplane.MIG_CONTROLLER, controlplane.MIG_PLUGIN, controlplane.node_user(REAL_NODE))


def make_namespace(api: Api) -> None:
    """The namespace of the driver."""
    api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})


def serve_mignodes(api: Api) -> None:
    """Our resource; returns when it is served."""
    api.create(mignode_definition())

    def served() -> bool:
        # Not at once, not even after the condition Established: 404, then 429.
        with contextlib.suppress(ApiError):
            return api.list("MigNode") == []
        return False

    wait_for("MigNode", served)


@contextlib.contextmanager
def served_plane(binaries: Binaries, home: Path, *, setup: Setup = USUAL) -> Iterator[ControlPlane]:
    """A control plane of its own, in a folder to make, with the driver's namespace and resource."""
    home.mkdir(parents=True)
    with ControlPlane(binaries, home, users=USERS, setup=setup) as plane:
        make_namespace(plane.api)
        serve_mignodes(plane.api)
        yield plane
