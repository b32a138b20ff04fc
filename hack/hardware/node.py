"""The node program over this machine's GPUs; kubelet is played, also for MPS daemons."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from api.crds import mignode_definition
from dra.common.resources import CUSTOM_RESOURCE_DEFINITIONS, MIG_NODES, NODES, PODS, Obj
from dra.gpu.inventory import ClaimRef
from dra.gpu.names import DEFAULT_DRIVER
from dra.kube.client import KubeApi
from hack.bench.node.node import NODE, Claims, Place, Plugin, node_object, simulated_api_server
from hack.hardware.container import Added, Containers, of_devices
from sim.kubelet import plugins
from sim.kubelet.containers import resolve
from sim.processes import wait_for

MPS_NAMESPACE = "kube-system"
_CALL_SECONDS = 60.0
_END_SECONDS = 15.0
_LOOK_SECONDS = 0.2
_MIB = 1024


class Node:
    """A running node program and the claims on it; made by :func:`running`."""

    def __init__(self, api: KubeApi, place: Place, plugin: Plugin, containers: Containers) -> None:
        self._place = place
        self._plugin = plugin
        self._claims = Claims(api)
        self._kubelet = plugins.Plugin(driver=DEFAULT_DRIVER, endpoint=str(place.socket))
        self._daemons = _Daemons(api, containers)

    @contextmanager
    def prepared(
        self, device: str, parameters: Obj | None = None
    ) -> Iterator[tuple[Added, dict[str, float]]]:
        """Prepare a claim of a device; what its containers get, and how long the calls took in ms.

        ``parameters``: an opaque configuration of the claim. The time of Unprepare is there at the
        end.

        Raises:
            plugins.ClaimError: the node program refuses; the text is its own.
        """
        [ref] = self._claims.make([device], parameters=parameters)
        took: dict[str, float] = {}
        with self._daemons.served():
            try:
                [devices] = _timed(took, "prepare", self._prepare, ref).values()
                ids = [name for each in devices for name in each.cdi_ids]
                yield of_devices(resolve(self._place.root / "cdi", ids)), took
            finally:
                _timed(took, "unprepare", self._unprepare, ref)
                self._claims.delete([ref])

    def size(self) -> dict[str, float]:
        """Memory in MiB, of it what is of files, and threads of the node program now."""
        kib = {"memory_mib": "VmRSS", "of_files_mib": "RssFile"}
        sizes = {name: round(self._plugin.status(each) / _MIB, 1) for name, each in kib.items()}
        return {**sizes, "threads": self._plugin.status("Threads")}

    def close(self) -> None:
        """Close the connection of kubelet."""
        self._kubelet.close()

    def _prepare(self, ref: ClaimRef) -> dict[str, tuple[plugins.PreparedDevice, ...]]:
        return self._kubelet.prepare([ref], seconds=_CALL_SECONDS)

    def _unprepare(self, ref: ClaimRef) -> None:
        """Unprepare, as often as kubelet would while a daemon ends."""
        end = time.monotonic() + _END_SECONDS
        while True:
            try:
                return self._kubelet.unprepare([ref], seconds=_CALL_SECONDS)
            except plugins.ClaimError:
                if time.monotonic() > end:
                    raise
                time.sleep(_LOOK_SECONDS)


@contextmanager
def running(
    root: Path, host_root: Path, flags: Sequence[str], containers: Containers
) -> Iterator[tuple[Node, Obj]]:
    """The node program on this machine, and its MigNode.

    Raises:
        ClusterError: it does not come to offer its GPUs; the text has its last words.
    """
    with simulated_api_server(root) as kubeconfig:
        api = KubeApi.connect(str(kubeconfig), user_agent="hardware", timeout_seconds=30)
        api.create(CUSTOM_RESOURCE_DEFINITIONS, mignode_definition())
        wait_for("the Node", lambda: bool(api.create(NODES, node_object())))
        place = Place(root, host_root, kubeconfig)
        mps = ("--mps-image", "copied", "--mps-namespace", MPS_NAMESPACE)
        plugin = Plugin(place, *mps, *flags)
        with plugin.running(api):
            node = Node(api, place, plugin, containers)
            try:
                yield node, api.get(MIG_NODES, NODE)
            finally:
                node.close()
        api.close()


class _Daemons:
    """Plays kubelet for pods of MPS daemons: a container each, which ends with its pod."""

    def __init__(self, api: KubeApi, containers: Containers) -> None:
        self._api = api
        self._containers = containers
        self._running: dict[str, subprocess.Popen[str]] = {}

    @contextmanager
    def served(self) -> Iterator[None]:
        """Serve such pods while this is entered."""
        stop = threading.Event()
        thread = threading.Thread(target=self._serve, args=(stop,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    def _serve(self, stop: threading.Event) -> None:
        while not stop.wait(_LOOK_SECONDS):
            self._look()
        for name in list(self._running):
            self._end(name)

    def _look(self) -> None:
        pods = {p["metadata"]["name"]: p for p in self._api.list(PODS).items}
        for name, pod in pods.items():
            if "deletionTimestamp" in pod["metadata"]:
                self._end(name)
                self._api.delete(PODS, name, namespace=MPS_NAMESPACE, grace_seconds=0)
            elif name not in self._running:
                self._running[name] = self._start(pod["spec"])
        for name in self._running.keys() - pods.keys():
            self._end(name)

    def _start(self, spec: Obj) -> subprocess.Popen[str]:
        (container,) = spec["containers"]
        paths = {v["name"]: v["hostPath"]["path"] for v in spec["volumes"]}
        added = Added(
            env=tuple(f"{each['name']}={each['value']}" for each in container["env"]),
            mounts=tuple(
                (paths[m["name"]], m["mountPath"], "ro" if m.get("readOnly") else "rw")
                for m in container["volumeMounts"]
            ),
        )
        return self._containers.start(container["command"], added, privileged=True)

    def _end(self, name: str) -> None:
        if process := self._running.pop(name, None):
            process.terminate()
            try:
                process.communicate(timeout=_END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()


def _timed(took: dict[str, float], name: str, act: Callable[..., Any], *arguments: Any) -> Any:
    began = time.monotonic()
    try:
        return act(*arguments)
    finally:
        took[name] = round(1e3 * (time.monotonic() - began), 1)
