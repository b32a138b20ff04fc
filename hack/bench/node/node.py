"""One node: its claims in an API server, its plugin as a process, and kubelet's calls."""

from __future__ import annotations

import ctypes
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import grpc

from api.kubelet.pluginregistration.v1 import api_pb2 as registration
from api.kubelet.pluginregistration.v1 import api_pb2_grpc as registration_grpc
from dra.claims.allocation import label_of, node_label
from dra.common.resources import MIG_NODES, NODES, RESOURCE_CLAIMS, Obj
from dra.gpu.inventory import ClaimRef
from dra.gpu.names import DEFAULT_DRIVER
from dra.kube.client import KubeApi
from dra.kube.errors import KubeError, ObjectNotFoundError
from sim.kubelet import plugins
from sim.processes import Process, wait_for

NODE = "bench"
_LIBC = ctypes.CDLL(None, use_errno=True)
OF_THE_IMAGE = {"GRPC_EXPERIMENTS": "-event_engine_listener"}
"""Variables that the plugin's image sets."""
_CALL_SECONDS = 60
_POLL_SECONDS = 0.01


@dataclass(frozen=True, slots=True)
class Place:
    """The plugin's surroundings: directories, NVML's library, kubeconfig.

    Without ``library`` and ``machine`` the library is the one that this process would find.
    ``create_ms`` is how long making a GPU instance takes, for libraries that read NVML_CREATE_MS;
    ``kubelet`` is kubelet's directory below ``root``.
    """

    root: Path
    host_root: Path
    kubeconfig: Path
    library: Path | None = None
    machine: Path | None = None
    create_ms: int = 0
    kubelet: str = "kubelet"

    @property
    def socket(self) -> Path:
        """Socket on which the plugin serves kubelet."""
        return self.root / self.kubelet / "plugins" / DEFAULT_DRIVER / "dra.sock"

    @property
    def registration(self) -> Path:
        """Socket on which the plugin tells kubelet of itself."""
        return self.root / self.kubelet / "plugins_registry" / f"{DEFAULT_DRIVER}-reg.sock"

    @property
    def environment(self) -> dict[str, str]:
        """Those of the image, and those by which the library is found, and finds the machine."""
        if self.library is None or self.machine is None:
            return OF_THE_IMAGE
        return OF_THE_IMAGE | {
            "LD_LIBRARY_PATH": str(self.library.parent),
            "NVML_MACHINE": str(self.machine / "nvml.txt"),
            "NVML_CREATE_MS": str(self.create_ms),
        }


@contextmanager
def simulated_api_server(root: Path) -> Iterator[Path]:
    """A simulated API server in another process; its kubeconfig."""
    kubeconfig = root / "kubeconfig"
    command = [sys.executable, "-m", "sim", "apiserver", "--kubeconfig-out", str(kubeconfig)]
    server = Process("apiserver", command, logs=root)
    server.start()
    try:
        wait_for("the API server", kubeconfig.exists)
        yield kubeconfig
    finally:
        server.stop()


class Plugin:
    """The node program as a process of its own, with further ``flags``; enter to start it.

    ``registered`` and ``shown`` are the milliseconds from its start until it could be registered,
    and until its GPUs were in its MigNode.
    """

    def __init__(self, place: Place, *flags: str) -> None:
        self._place = place
        self.registered = self.shown = 0.0
        self._process = Process(
            "plugin",
            [
                *(sys.executable, "-m", "kubeletplugin", "--node-name", NODE),
                *("--kubeconfig", str(place.kubeconfig), "--host-root", str(place.host_root)),
                *("--driver-root", "/", "--kubelet-root", str(place.root / place.kubelet)),
                *("--cdi-root", str(place.root / "cdi"), "--log-level", "warning"),
                *flags,
            ],
            logs=place.root,
            environment=os.environ | place.environment,
        )

    @contextmanager
    def running(self, api: KubeApi) -> Iterator[None]:
        """Run it; entered once its GPUs are in its MigNode, of which none is left from a former."""
        with suppress(ObjectNotFoundError):
            api.delete(MIG_NODES, NODE)
        began = time.monotonic()
        self._process.start()
        try:
            wait_for("the registration", self._registrable, timeout=60, interval=_POLL_SECONDS)
            self.registered = 1e3 * (time.monotonic() - began)
            wait_for(
                "a ready MigNode", lambda: self._ready(api), timeout=60, interval=_POLL_SECONDS
            )
            self.shown = 1e3 * (time.monotonic() - began)
            yield
        finally:
            self._process.stop()

    def cpu_ms(self) -> float:
        """CPU time that it has used so far."""
        return cpu_ms(self._process.pid)

    def status(self, field: str) -> int:
        """A number of its /proc/<pid>/status: ``VmRSS`` in KiB, ``Threads``."""
        return self._process.status(field)

    def _registrable(self) -> bool:
        """True once it answers what kubelet asks it first."""
        self._process.assert_running()
        if not self._place.registration.exists():
            return False
        with grpc.insecure_channel(f"unix:{self._place.registration}") as channel:
            stub = registration_grpc.RegistrationStub(channel)
            try:
                stub.GetInfo(registration.InfoRequest(), timeout=1)
            except grpc.RpcError:
                return False
        return True

    def _ready(self, api: KubeApi) -> bool:
        self._process.assert_running()
        try:
            status = api.get(MIG_NODES, NODE).get("status", {})
        except KubeError:
            return False
        conditions = {c["type"]: c["status"] for c in status.get("conditions", ())}
        return self._place.socket.exists() and conditions.get("Ready") == "True"


class Claims:
    """Claims that are allocated on the node, made beforehand."""

    def __init__(self, api: KubeApi) -> None:
        self._api = api
        self._made = 0

    def make(
        self, devices: Sequence[str], *, expected: bool = False, parameters: Obj | None = None
    ) -> list[ClaimRef]:
        """One allocated claim for each device; several may name the same.

        With ``expected`` pods have reserved them and their labels name the node, as the controller
        writes both: their slices are made at once. ``parameters``: their opaque configuration.
        """
        opaque = {"driver": DEFAULT_DRIVER, "parameters": parameters}
        config = [{"source": "FromClaim", "opaque": opaque}] if parameters else []
        return [self._allocated(each, expected=expected, config=config) for each in devices]

    def shown(self, ref: ClaimRef) -> bool:
        """True if the claim's status tells of its device."""
        claim = self._api.get(RESOURCE_CLAIMS, ref.name, namespace=ref.namespace)
        return bool(claim["status"].get("devices"))

    def instances(self) -> int:
        """Number of slices that the MigNode lists."""
        gpus = self._api.get(MIG_NODES, NODE)["status"].get("gpus", ())
        return sum(len(gpu.get("instances", ())) for gpu in gpus)

    def delete(self, refs: Sequence[ClaimRef]) -> None:
        """Remove them from the API server."""
        for ref in refs:
            self._api.delete(RESOURCE_CLAIMS, ref.name, namespace=ref.namespace)

    def _allocated(self, device: str, *, expected: bool, config: Sequence[Obj]) -> ClaimRef:
        self._made += 1
        name = f"bench-{os.getpid()}-{self._made}"
        request = {"name": "r", "exactly": {"deviceClassName": DEFAULT_DRIVER}}
        body: Obj = {
            "metadata": {
                "name": name,
                "namespace": "default",
                "labels": {node_label(DEFAULT_DRIVER): label_of(NODE)} if expected else {},
            },
            "spec": {"devices": {"requests": [request]}},
        }
        made = self._api.create(RESOURCE_CLAIMS, body)
        result = {"request": "r", "driver": DEFAULT_DRIVER, "pool": NODE, "device": device}
        field = {"key": "metadata.name", "operator": "In", "values": [NODE]}
        allocation = {
            "devices": {"results": [result], "config": list(config)},
            "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [field]}]},
        }
        status: Obj = {"status": {"allocation": allocation}}
        if expected:
            status["status"]["reservedFor"] = [{"resource": "pods", "name": name, "uid": name}]
        self._api.patch(RESOURCE_CLAIMS, name, status, namespace="default", subresource="status")
        return ClaimRef("default", name, made["metadata"]["uid"])


class Kubelet:
    """Calls over the plugin's socket, each with the milliseconds that it took."""

    def __init__(self, socket: Path) -> None:
        self._plugin = plugins.Plugin(driver=DEFAULT_DRIVER, endpoint=str(socket))

    def close(self) -> None:
        """Close the connection."""
        self._plugin.close()

    def prepare(self, ref: ClaimRef) -> float:
        """Prepare one claim; ClaimError if it is refused."""
        began = time.perf_counter()
        self._plugin.prepare([ref], seconds=_CALL_SECONDS)
        return 1e3 * (time.perf_counter() - began)

    def unprepare(self, ref: ClaimRef) -> float:
        """Unprepare one claim; ClaimError if it is refused."""
        began = time.perf_counter()
        self._plugin.unprepare([ref], seconds=_CALL_SECONDS)
        return 1e3 * (time.perf_counter() - began)


def cpu_ms(pid: int) -> float:
    """CPU time that a process has used so far, by its clock: /proc counts in steps of 10 ms."""
    clock = ctypes.c_int()
    if error := _LIBC.clock_getcpuclockid(pid, ctypes.byref(clock)):
        raise ProcessLookupError(error, os.strerror(error))
    return 1e3 * time.clock_gettime(clock.value)


def node_object() -> Obj:
    """The Node whose GPUs are used."""
    return {"apiVersion": "v1", "kind": NODES.kind, "metadata": {"name": NODE}}
