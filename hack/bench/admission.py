"""Cost of the chart's policy that makes claims of limits, on a real API server.

``python -m hack.bench.admission`` with ``KUBEBUILDER_ASSETS``. Pods are created as dry runs over
one connection, in turn with and without the policy, so that the machine's load hits both.
"""

from __future__ import annotations

import http.client
import json
import os
import ssl
import statistics
import tempfile
import time
import urllib.parse
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from dra.common.resources import Obj
from hack.cluster.binaries import find_binaries
from hack.cluster.driver.chart import render
from hack.cluster.driver.installation import apply
from hack.cluster.plane.controlplane import ControlPlane, Setup
from hack.cluster.waiting import wait_for

ROUNDS = 400
LABEL = {"mig.dra.dev/limits": "claims"}
KINDS: dict[str, tuple[int, dict[str, str]]] = {
    "one container, one slice": (1, {"nvidia.com/mig-1g.5gb": "1"}),
    "one container, by memory": (1, {"nvidia.com/gpu": "2", "nvidia.com/gpumem": "8000"}),
    "eight containers, seven slices each": (8, {"nvidia.com/mig-1g.5gb": "7"}),
    "no slices": (1, {"cpu": "100m"}),
}


def pod(containers: int, limits: dict[str, str]) -> Obj:
    """A pod of some containers that all have these limits."""
    spec = {
        "containers": [
            {"name": f"c{n}", "image": "busybox", "resources": {"limits": limits}}
            for n in range(containers)
        ]
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec}


def creator(plane: ControlPlane) -> Callable[[str, Obj], Obj]:
    """Creation of a pod in a namespace as a dry run, over one connection; raises RuntimeError."""
    server = urllib.parse.urlparse(plane.server)
    context = ssl.create_default_context(cafile=plane.certificate)
    connection = http.client.HTTPSConnection(server.netloc, context=context)
    headers = {**plane.api.headers, "Content-Type": "application/json"}

    def create(namespace: str, body: Obj) -> Obj:
        path = f"/api/v1/namespaces/{namespace}/pods?dryRun=All"
        connection.request("POST", path, json.dumps(body), headers)
        answer = connection.getresponse()
        made: Obj = json.loads(answer.read())
        if answer.status != http.HTTPStatus.CREATED:
            raise RuntimeError(f"{answer.status}: {made.get('message')}")
        return made

    return create


def ready(create: Callable[[str, Obj], Obj]) -> bool:
    """True once the policy acts where it is to, and only there."""
    body = pod(*KINDS["one container, one slice"])
    with suppress(RuntimeError):
        return "resourceClaims" in create("with", body)["spec"] and not create("without", body)[
            "spec"
        ].get("resourceClaims")
    return False


def measure(create: Callable[[str, Obj], Obj]) -> None:
    """Print the medians, in milliseconds."""
    print(f"{'pod':<38}{'without':>9}{'with':>9}{'more':>9}   ms, medians of {ROUNDS}")
    for name, (containers, limits) in KINDS.items():
        body = pod(containers, limits)
        taken: dict[str, list[float]] = {"without": [], "with": []}
        for _ in range(ROUNDS):
            for namespace, times in taken.items():
                began = time.perf_counter()
                create(namespace, body)
                times.append((time.perf_counter() - began) * 1000)
        without, policy = (statistics.median(taken[each]) for each in ("without", "with"))
        print(f"{name:<38}{without:>9.2f}{policy:>9.2f}{policy - without:>9.2f}")


def main() -> None:
    """Start a control plane, measure, and end it."""
    binaries = find_binaries(os.environ, home=Path.home())
    setup = Setup(scheduling=False, controllers=("serviceaccount",), auditing=False)
    with (
        tempfile.TemporaryDirectory(prefix="mig", dir="/tmp") as directory,
        ControlPlane(binaries, Path(directory), setup=setup) as plane,
    ):
        for name, labels in (("with", LABEL), ("without", {})):
            metadata = {"name": name, "labels": labels}
            plane.api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
        for each in render():
            if each["metadata"]["name"].endswith("pod-limits"):
                apply(plane.api, each)
        create = creator(plane)
        wait_for("policy", lambda: ready(create))
        measure(create)


if __name__ == "__main__":
    main()
