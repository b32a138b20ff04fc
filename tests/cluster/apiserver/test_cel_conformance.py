"""What the controller's CEL says of a selector, kube-scheduler's says too.

The scheduler gets one device, described as the controller describes it, and a claim per expression.
They have adminAccess, so that all may be given the same device.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dra.common.resources import Obj
from dra.gpu.devices import slice_attributes, slice_capacity
from hack.cluster.api import Api, ApiError
from hack.cluster.binaries import Binaries
from hack.cluster.controlplane import ADMIN, ControlPlane, Setup
from sim.processes import wait_for
from tests.cluster.harness.pods import add_fake_node, pod
from tests.controller.helpers.objects import DRIVER, gpu, inventory
from tests.dra.cel.test_cel import FAILING, LIBRARIES, NOT_SELECTED, SELECTED
from tests.dra.cel.test_celrefusals import MALFORMED, SAFE
from tests.dra.gpus import A100

NODE = "cel-node"


UNPROCESSABLE = 422


CASES: list[tuple[str, str]] = [
    *((expression, "selected") for expression in (*SELECTED, *LIBRARIES, *SAFE)),
    *((expression, "not selected") for expression in NOT_SELECTED),
    *((expression, "failed") for expression, _ in (*FAILING, *MALFORMED) if expression),
]


@pytest.fixture(scope="module")
def served(binaries: Binaries, root: Path) -> Iterator[Api]:
    home = root / "cel"
    home.mkdir()
    with ControlPlane(binaries, home) as control_plane:
        api = control_plane.api
        labels = {"resource.kubernetes.io/admin-access": "true"}
        api.patch("Namespace", "default", {"metadata": {"labels": labels}})
        add_fake_node(api, NODE, cpu="64")
        room = {"pods": str(len(CASES) + 10)}
        api.patch("Node", NODE, {"status": {"allocatable": room}}, subresource="status")
        api.create(_object("DeviceClass", "any", {"selectors": []}))
        api.create(_object("ResourceSlice", "slices", _slice()))
        yield api


def _object(kind: str, name: str, spec: Obj) -> Obj:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": kind,
        "metadata": {"name": name},
        "spec": spec,
    }


def _slice() -> Obj:
    card = gpu(0, "node-a")
    profile = A100.by_name("1g.5gb")
    assert profile is not None
    device = {
        "name": "device",
        "attributes": slice_attributes(card, profile, inventory("node-a", card)),
        "capacity": slice_capacity(profile),
    }
    pool = {"name": NODE, "generation": 1, "resourceSliceCount": 1}
    return {"driver": DRIVER, "nodeName": NODE, "pool": pool, "devices": [device]}


def _claim(name: str, expression: str) -> Obj:
    exactly = {
        "deviceClassName": "any",
        "adminAccess": True,
        "selectors": [{"cel": {"expression": expression}}],
    }
    return _object(
        "ResourceClaim", name, {"devices": {"requests": [{"name": "r", "exactly": exactly}]}}
    )


def _verdict(api: Api, name: str) -> str:
    """What became of a pod: its node, or why the scheduler did not find one."""
    found = api.get("Pod", name)
    if found["spec"].get("nodeName"):
        return "selected"
    told = [c for c in found["status"].get("conditions", []) if c["type"] == "PodScheduled"]
    message = told[0].get("message", "") if told else ""
    if "CEL" in message or "runtime error" in message:
        return "failed"
    return "not selected" if "cannot allocate" in message else ""


def _wait(api: Api, name: str, expression: str) -> str:
    return wait_for(
        f"verdict on {expression}",
        lambda: _verdict(api, name),
        context=lambda: str(api.get("Pod", name)["status"]),
    )


@pytest.mark.timeout(300)
def test_the_scheduler_says_the_same_of_every_expression(served: Api) -> None:
    found = {}
    for number, (expression, _) in enumerate(CASES):
        try:
            served.create(_claim(f"c{number}", expression))
        except ApiError as error:
            if error.status != UNPROCESSABLE:
                raise
            found[expression] = "failed"  # by the API server already
            continue
        claims = {"gpu": {"resourceClaimName": f"c{number}"}}
        served.create(pod(f"p{number}", {"main": ["sleep", "1"]}, claims=claims, cpu="1m"))
    for number, (expression, _) in enumerate(CASES):
        if expression not in found:
            found[expression] = _wait(served, f"p{number}", expression)
    differing = {e: (ours, found[e]) for e, ours in CASES if found[e] != ours}
    assert differing == {}


# -- the cases of the embedded API server hold on a real one, which is where they come from


REPOSITORY = Path(__file__).parents[3]


CONTROLLERS = ("garbage-collector-controller", "namespace-controller", "serviceaccount-controller")
"""Deletion and the default service account, without which there are no pods."""


@pytest.fixture
def quiet(binaries: Binaries, root: Path) -> Iterator[ControlPlane]:
    """Without the controllers that change or add to what the cases make."""
    home = root / "conformance"
    home.mkdir()
    with ControlPlane(
        binaries, home, setup=Setup(controllers=CONTROLLERS, scheduling=False)
    ) as control_plane:
        yield control_plane


@pytest.mark.timeout(600)
def test_the_cases_hold_on_a_real_api_server(quiet: ControlPlane) -> None:
    """In one run: it empties its namespaces at the end, and would wait for those of another."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-n0", "-q", "tests/sim/conformance"],
        cwd=REPOSITORY,
        env={**os.environ, "CONFORMANCE_KUBECONFIG": str(quiet.kubeconfig(ADMIN))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
