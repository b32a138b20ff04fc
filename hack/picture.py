"""``python -m hack.picture``: draws docs/pictures/map.svg from a busy simulated cluster."""

from __future__ import annotations

import io
import os
import pty
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.text import Text

from dra.common.resources import (
    NAMESPACES,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    Obj,
    at,
)
from dra.kube.client import KubeApi
from sim.cluster.cluster import Cluster, ClusterShape, running_cluster

_PICTURE = Path(__file__).parents[1] / "docs" / "pictures" / "map.svg"
_SHAPE = ClusterShape(nodes=2, gpus=("A100-SXM4-40GB", "A100-SXM4-40GB", "H100-80GB-HBM3", "A30"))
_PODS = (
    ("research", "pretrain", "mig-7g.80gb"),
    ("research", "finetune", "mig-4g.20gb"),
    ("research", "eval-0", "mig-3g.20gb"),
    ("research", "crashed", "mig-2g.10gb"),
    ("web", "llm-a", "mig-2g.10gb"),
    ("web", "llm-b", "mig-2g.12gb"),
    ("web", "rank", "mig-1g.5gb"),
    ("web", "embed-0", "mig-1g.6gb"),
    ("web", "embed-1", "mig-1g.6gb"),
    ("team", "nb-ann", "mig-1g.5gb"),
    ("team", "nb-ben", "mig-1g.5gb"),
    ("team", "nb-cho", "mig-1g.10gb"),
)
_COLUMNS = 112
_FONTS = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)
_HOLDER = 4711
_SECONDS = 60.0


def render(command: str, text: str) -> str:
    """Picture of a terminal (SVG) in which a command has written ``text``, with its colours.

    It names no font of another server.
    """
    console = Console(
        record=True,
        width=_COLUMNS,
        file=io.StringIO(),
        force_terminal=True,
        color_system="truecolor",
        no_color=False,
    )
    console.print(Text.from_ansi(f"$ {command}\n{text}"), end="", highlight=False)
    return _FONTS.sub("", console.export_svg(title=command))


def main() -> None:
    """Fill the cluster, take the picture, write it."""
    with running_cluster(_SHAPE) as cluster:
        second = cluster.places[1].machine
        second.set_mig_mode(2, enabled=False)
        second.create_slice(1, "3g.20gb", start=4)
        _until("the foreign instance", lambda: "foreign" in _states(cluster))
        for namespace in sorted({namespace for namespace, _, _ in _PODS}):
            cluster.api.create(NAMESPACES, {"metadata": {"name": namespace}})
        for namespace, name, device_class in _PODS:
            _start(cluster.api, namespace, name, device_class)
        _until("all pods to run", lambda: _running(cluster.api) == len(_PODS))
        _leave_behind(cluster, "crashed")
        _mig(cluster, "drain", "node-2", "gpu-3", "--reason", "driver 580")
        _PICTURE.parent.mkdir(exist_ok=True)
        _PICTURE.write_text(render("kubectl mig map", _on_terminal(cluster, "map")))
    sys.stdout.write(f"{_PICTURE} written\n")


def _start(api: KubeApi, namespace: str, name: str, device_class: str) -> None:
    request = {"name": "slice", "exactly": {"deviceClassName": device_class}}
    spec = {"spec": {"devices": {"requests": [request]}}}
    metadata = {"name": name, "namespace": namespace}
    api.create(RESOURCE_CLAIM_TEMPLATES, {"metadata": metadata, "spec": spec})
    container = {"name": "main", "image": "app", "resources": {"claims": [{"name": "gpu"}]}}
    pod: Obj = {
        "containers": [container],
        "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": name}],
    }
    api.create(PODS, {"metadata": metadata, "spec": pod})
    _until(f"{name} to run", lambda: _phase(api, namespace, name) == "Running")


def _leave_behind(cluster: Cluster, name: str) -> None:
    """A process keeps the slice of a pod that is gone."""
    claims = cluster.api.list(RESOURCE_CLAIMS).items
    claim = next(c for c in claims if c["metadata"]["name"].startswith(f"{name}-"))
    uid, namespace = claim["metadata"]["uid"], claim["metadata"]["namespace"]
    for place, inventory in zip(cluster.places, cluster.inventories(), strict=True):
        for number, gpu in enumerate(inventory.gpus):
            for instance in gpu.instances:
                if instance.claim is None or instance.claim.uid != uid:
                    continue
                gi, ci = instance.gpu_instance_id, instance.compute_instance_id
                if gi is not None and ci is not None:
                    place.machine.start_process(
                        number, _HOLDER, gpu_instance=gi, compute_instance=ci
                    )
    cluster.api.delete(PODS, name, namespace=namespace)
    _until("the process to be named", lambda: str(_HOLDER) in _messages(cluster))


def _states(cluster: Cluster) -> set[str]:
    return {i.state.value for n in cluster.inventories() for g in n.gpus for i in g.instances}


def _messages(cluster: Cluster) -> str:
    return " ".join(i.message for n in cluster.inventories() for g in n.gpus for i in g.instances)


def _phase(api: KubeApi, namespace: str, name: str) -> str:
    return str(at(api.get(PODS, name, namespace=namespace), "status", "phase", default=""))


def _running(api: KubeApi) -> int:
    return sum(at(p, "status", "phase") == "Running" for p in api.list(PODS).items)


def _until(what: str, holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _SECONDS
    while not holds():
        if time.monotonic() > deadline:
            raise SystemExit(f"waited in vain for {what}")
        time.sleep(0.05)


def _mig(cluster: Cluster, *arguments: str) -> None:
    command = [sys.executable, "-m", "cli", *arguments]
    env = {**os.environ, "KUBECONFIG": str(cluster.kubeconfig)}
    subprocess.run(command, env=env, check=False, stdout=subprocess.DEVNULL)


def _on_terminal(cluster: Cluster, *arguments: str) -> str:
    """Output of the command on a terminal with colours."""
    reader, writer = pty.openpty()
    env = {k: v for k, v in os.environ.items() if k != "NO_COLOR"}
    env |= {
        "KUBECONFIG": str(cluster.kubeconfig),
        "TERM": "xterm-256color",
        "COLUMNS": str(_COLUMNS),
    }
    command = [sys.executable, "-m", "cli", *arguments]
    with subprocess.Popen(command, stdout=writer, env=env) as process:
        os.close(writer)
        shown = b""
        while more := _more(reader):
            shown += more
        if process.wait() != 0:
            raise SystemExit(f"{command} failed")
    os.close(reader)
    return shown.decode().replace("\r\n", "\n")


def _more(reader: int) -> bytes:
    try:
        return os.read(reader, 65536)
    except OSError:  # a terminal whose other end is closed
        return b""


if __name__ == "__main__":
    main()
