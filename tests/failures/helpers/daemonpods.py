"""Kubelet's part in MPS daemons, where the API is a folder: what runs is told by files.

A daemon runs for as long as its pod is there. A plain file stands for the FIFO that its processes
have open: whoever opens that for writing finds it, and it outlives a copy of the folder.
"""

from __future__ import annotations

from pathlib import Path

from dra.common.resources import PODS
from dra.kube.client import KubeApi

NAMESPACE = "drivers"
_RUNNING = ("alive", "ready", "pod")


def run_pods(api: KubeApi, folder: Path) -> None:
    """Start the daemons whose pods are new, and end those whose pods are gone.

    ``folder`` has a directory for each claim.
    """
    places = set[Path]()
    for pod in api.list(PODS, namespace=NAMESPACE).items:
        [container] = pod["spec"]["containers"]
        paths = {v["name"]: v.get("hostPath", {}).get("path", "") for v in pod["spec"]["volumes"]}
        environment = {e["name"]: e.get("value", "") for e in container["env"]}
        place = Path(paths["claim"])
        places.add(place)
        for name, text in zip(
            _RUNNING, ("", environment["SETTINGS"], pod["metadata"]["uid"]), strict=True
        ):
            (place / name).write_text(text)
    for place in folder.glob("*"):
        if place not in places:
            for name in _RUNNING:
                (place / name).unlink(missing_ok=True)
