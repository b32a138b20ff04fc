"""The chart's pods on a machine that has neither their images nor a network for pods.

Kubelet starts them as the chart describes them: accounts, mounts, users. Only the image is an empty
one, into which the machine's Python, this checkout and its environment are mounted, and the pods
share the machine's network, where the API server listens on loopback. There each would want the
same port for its metrics: it takes any, which kubelet cannot know, so there are no probes.
"""

from __future__ import annotations

import copy
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from dra.common.resources import Obj
from hack.cluster.driver.chart import REPOSITORY, version

if TYPE_CHECKING:
    from collections.abc import Iterable

HANDLER = "checkout"
"""The container runtime's handler, and the RuntimeClass, of pods that see this checkout."""

RUNTIME_CLASS: Obj = {
    "apiVersion": "node.k8s.io/v1",
    "kind": "RuntimeClass",
    "metadata": {"name": HANDLER},
    "handler": HANDLER,
}

_SYSTEM = ("/usr", "/lib", "/lib64")
"""Folders of the machine with what Python links to."""


USER_IMAGE = "ubuntu:24.04"
"""Image that the pods of the handbook ask for: busybox under its name, as nothing can be pulled."""


def references() -> list[str]:
    """The images that the pods of chart and handbook ask for, in full."""
    names = ("controller", "kubelet-plugin", "simulator")
    ours = [f"docker.io/dra-driver-nvidia-mig/{each}:{version()}" for each in names]
    return [*ours, f"docker.io/library/{USER_IMAGE}"]


def adapted(objects: Iterable[Obj], *, server: str) -> list[Obj]:
    """The chart's objects, their workloads changed so that they run here.

    Args:
        objects: what the chart renders.
        server: URL of the API server.
    """
    return [_adapted(each, server) if _is_workload(each) else each for each in objects]


def with_checkout(spec: dict[str, Any]) -> dict[str, Any]:
    """A runtime specification (OCI) that shows this checkout and Python, at their own paths."""
    # The outermost first: one of them may lie in another.
    paths = sorted({*_SYSTEM, sys.base_prefix, sys.prefix, str(REPOSITORY)})
    mounts = [
        {
            "destination": path,
            "type": "bind",
            "source": str(Path(path).resolve()),
            "options": ["rbind", "ro"],
        }
        for path in paths
        if Path(path).exists()
    ]
    return {**spec, "mounts": [*spec["mounts"], *mounts]}


def _is_workload(obj: Obj) -> bool:
    return obj["kind"] in {"Deployment", "DaemonSet"}


def _adapted(workload: Obj, server: str) -> Obj:
    changed = copy.deepcopy(workload)
    address = urlsplit(server)
    environment = {
        "PATH": f"{sys.prefix}/bin:/bin",
        "KUBERNETES_SERVICE_HOST": str(address.hostname),
        "KUBERNETES_SERVICE_PORT": str(address.port),
    }
    spec = changed["spec"]["template"]["spec"]
    spec |= {"hostNetwork": True, "dnsPolicy": "Default", "runtimeClassName": HANDLER}
    for container in [*spec.get("initContainers", []), *spec["containers"]]:
        container["workingDir"] = str(REPOSITORY)
        for field in ("ports", "startupProbe", "livenessProbe", "readinessProbe"):
            container.pop(field, None)
        container["args"] = [
            "--metrics-address=127.0.0.1:0" if each.startswith("--metrics-address=") else each
            for each in container.get("args", [])
        ]
        container.setdefault("env", []).extend(
            {"name": name, "value": value} for name, value in environment.items()
        )
    return changed
