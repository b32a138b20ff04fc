"""A mirror of a real API server whose etcd is put back to an earlier state."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from dra.common.resources import RESOURCE_CLAIMS, Obj
from dra.kube.client import KubeApi
from dra.kube.reflector import Change, Reflector
from hack.cluster.binaries import Binaries
from hack.cluster.controlplane import ADMIN, ControlPlane, Setup
from sim.processes import wait_for

pytestmark = pytest.mark.timeout(300)

LATER = 30
"""Claims made after the snapshot: more than the API server itself writes when it starts."""


def claim(name: str) -> Obj:
    request = {"name": "slice", "exactly": {"deviceClassName": "none"}}
    return {
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"devices": {"requests": [request]}},
    }


def test_what_was_written_after_the_snapshot_is_forgotten(binaries: Binaries, root: Path) -> None:
    home, snapshot = root / "restored", root / "restored-snapshot"
    home.mkdir()
    setup = Setup(controllers=("serviceaccount-controller",), scheduling=False, auditing=False)
    changes: list[Change] = []
    with ControlPlane(binaries, home, setup=setup) as control_plane:
        api = KubeApi.connect(str(control_plane.kubeconfig(ADMIN)), user_agent="cluster-tests")
        reflector = Reflector(api, RESOURCE_CLAIMS, on_event=changes.append)
        names = {f"later-{n}" for n in range(LATER)}

        def known() -> set[str]:
            return {obj["metadata"]["name"] for obj in reflector.store.list()}

        try:
            api.create(RESOURCE_CLAIMS, claim("early"))
            reflector.start()
            wait_for("mirror", lambda: known() == {"early"})
            with control_plane.without_storage() as storage:
                shutil.copytree(storage, snapshot)
            for turn in range(3):
                for name in sorted(names):
                    if turn:
                        api.patch(
                            RESOURCE_CLAIMS,
                            name,
                            {"metadata": {"labels": {"turn": str(turn)}}},
                            namespace="default",
                        )
                    else:
                        api.create(RESOURCE_CLAIMS, claim(name))
            wait_for("later claims", lambda: known() == {"early", *names}, timeout=90)
            with control_plane.without_storage() as storage:
                shutil.rmtree(storage)
                shutil.copytree(snapshot, storage)
            wait_for("earlier state", lambda: known() == {"early"}, timeout=120)
        finally:
            reflector.stop()
            api.close()
    rewound = {c.new["metadata"]["name"] for c in changes if c.rewound and c.new}
    gone = {c.old["metadata"]["name"] for c in changes if c.kind == "deleted" and c.old}
    assert (rewound, gone) == ({"early"}, names)
