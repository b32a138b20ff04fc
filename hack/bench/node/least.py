"""Driver that does the least for a claim, by which the node program is measured.

``python -m hack.bench.node.least`` answers kubelet's calls with what no driver in this language can
do without, by the plugin's own means: its gRPC server, its requests, pynvml, files written whole.
It works on one claim at a time, checks nothing, and a later process knows nothing of it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import msgspec
import pynvml

from api.kubelet.dra.v1 import api_pb2 as v1
from api.kubelet.dra.v1 import api_pb2_grpc as v1_grpc
from api.mignode import ClaimRef, Instance, InstanceState, Placement
from cdi.files import write_durably, write_whole
from cdi.spec import claim_kind, device_id
from dra.common.resources import MIG_NODES, RESOURCE_CLAIMS, Obj
from dra.gpu.names import DEFAULT_DRIVER, MigDevice, parse_device
from dra.kube.client import KubeApi
from dra.kube.timing import rfc3339
from kubeletplugin.sockets import SocketServer

_MOST_PLACEMENTS = 16


@dataclass(frozen=True, slots=True)
class Made:
    """One claim with its slice, as it is recorded; ``size`` in memory slices."""

    claim: ClaimRef
    pool: str
    device: MigDevice
    size: int = 0
    gi: int = 0
    ci: int = 0
    uuid: str = ""


class Slices:
    """Slices of one compute slice. NVML is open; GPUs are named by their index."""

    def __init__(self) -> None:
        count = pynvml.nvmlDeviceGetCount()
        self._gpus = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(count)]
        self._sizes: dict[int, int] = {}
        self._compute: dict[int, int] = {}

    def create(self, wanted: Made) -> Made:
        """The claim with its slice, of which NVML has told what it is."""
        gpu, profile = self._gpus[wanted.device.minor], wanted.device.profile_id
        size = self._sizes.get(profile) or self._size(gpu, profile)
        place = pynvml.c_nvmlGpuInstancePlacement_t(start=wanted.device.start, size=size)
        gi = pynvml.nvmlDeviceCreateGpuInstanceWithPlacement(gpu, profile, ctypes.byref(place))
        gi_id = pynvml.nvmlGpuInstanceGetInfo(gi).id
        compute = self._compute.get(profile)
        if compute is None:
            compute = self._compute_profile(gi, profile)
        ci = pynvml.nvmlGpuInstanceCreateComputeInstance(gi, compute)
        info = pynvml.nvmlComputeInstanceGetInfo_v2(ci)
        uuid = pynvml.nvmlDeviceGetUUID(info.device)
        return replace(wanted, size=size, gi=gi_id, ci=info.id, uuid=uuid)

    def destroy(self, made: Made) -> None:
        """Destroy it by its ids, as handles do not outlive a process."""
        gi = pynvml.nvmlDeviceGetGpuInstanceById(self._gpus[made.device.minor], made.gi)
        ci = pynvml.nvmlGpuInstanceGetComputeInstanceById(gi, made.ci)
        pynvml.nvmlComputeInstanceDestroy(ci)
        pynvml.nvmlGpuInstanceDestroy(gi)

    def _size(self, gpu: Any, profile: int) -> int:
        """Memory slices of a profile, which stay what they are."""
        places = (pynvml.c_nvmlGpuInstancePlacement_t * _MOST_PLACEMENTS)()
        count = ctypes.c_uint(_MOST_PLACEMENTS)
        pynvml.nvmlDeviceGetGpuInstancePossiblePlacements(gpu, profile, places, ctypes.byref(count))
        self._sizes[profile] = int(places[0].size)
        return self._sizes[profile]

    def _compute_profile(self, gi: Any, profile: int) -> int:
        """Id of the compute instance that takes the whole of it, which stays what it is."""
        kind = pynvml.NVML_COMPUTE_INSTANCE_PROFILE_1_SLICE
        engines = pynvml.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED
        found = pynvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(gi, kind, engines)
        self._compute[profile] = int(found.id)
        return self._compute[profile]


MIG_NODE = "least"
"""The MigNode that it writes to, of whose content it changes the instances of one GPU."""


class Telling:
    """Shows what became of a claim, in a thread of its own."""

    def __init__(self, api: KubeApi) -> None:
        self._api = api
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="telling")

    def tell(self, made: Made, *, there: bool) -> None:
        """Show the claim's slice as made, or as gone; returns at once."""
        self._thread.submit(self._told, made, [made] if there else [])

    def stop(self) -> None:
        """End once all is told."""
        self._thread.shutdown()

    def _told(self, made: Made, there: list[Made]) -> None:
        value = [msgspec.to_builtins(_instance(m)) for m in there]
        path = f"/status/gpus/{made.device.minor}/instances"
        change = {"op": "add", "path": path, "value": value}
        self._api.patch(MIG_NODES, MIG_NODE, [change], subresource="status", content="json")
        claim = made.claim
        body: Obj = {
            "metadata": {"name": claim.name, "namespace": claim.namespace, "uid": claim.uid},
            "status": {"devices": [_device(m) for m in there]},
        }
        self._api.apply(RESOURCE_CLAIMS, body, field_manager=MIG_NODE, subresource="status")


def _instance(made: Made) -> Instance:
    return Instance(
        placement=Placement(start=made.device.start, size=made.size),
        state=InstanceState.PREPARED,
        profile=made.device.profile_label,
        profile_id=made.device.profile_id,
        gpu_instance_id=made.gi,
        compute_instance_id=made.ci,
        uuid=made.uuid,
        claim=made.claim,
    )


def _device(made: Made) -> Obj:
    condition = {
        "type": "Ready",
        "status": "True",
        "reason": "Prepared",
        "message": "",
        "lastTransitionTime": rfc3339(datetime.now(UTC)),
    }
    return {
        "driver": DEFAULT_DRIVER,
        "pool": made.pool,
        "device": str(made.device),
        "conditions": [condition],
        "data": {"migUUID": made.uuid},
    }


_KIND = claim_kind(DEFAULT_DRIVER)
_GPU_MAJOR, _CAPS_MAJOR = 195, 234
_MOST_BYTES = 4096


class Least(v1_grpc.DRAPluginServicer):
    """kubelet's calls."""

    def __init__(
        self, api: KubeApi, *, host: Path, directory: Path, telling: Telling | None
    ) -> None:
        self._api = api
        self._capabilities = f"{host}/proc/driver/nvidia/capabilities"
        self._directory, self._file = directory, directory / "record.json"
        self._telling = telling
        self._slices = Slices()
        self._made: dict[str, Made] = {}

    def NodePrepareResources(self, request: Any, context: Any) -> Any:  # noqa: ARG002, N802 - the protocol's
        """Prepare every claim of the request."""
        return v1.NodePrepareResourcesResponse(
            claims={c.uid: self._prepare(c) for c in request.claims}
        )

    def NodeUnprepareResources(self, request: Any, context: Any) -> Any:  # noqa: ARG002, N802 - the protocol's
        """Unprepare every claim of the request."""
        for claim in request.claims:
            self._unprepare(claim.uid)
        return v1.NodeUnprepareResourcesResponse(
            claims={c.uid: v1.NodeUnprepareResourceResponse() for c in request.claims}
        )

    def _prepare(self, claim: Any) -> Any:
        found = self._api.get(RESOURCE_CLAIMS, claim.name, namespace=claim.namespace)
        [result] = found["status"]["allocation"]["devices"]["results"]
        device = parse_device(result["device"])
        if not isinstance(device, MigDevice):
            raise TypeError(f"{device} is no slice")
        ref = ClaimRef(namespace=claim.namespace, name=claim.name, uid=claim.uid)
        intent = self._made[claim.uid] = Made(ref, result["pool"], device)
        write_whole(self._file, self._record())
        made = self._made[claim.uid] = self._slices.create(intent)
        write_whole(self._spec(claim.uid), self._edits(made), synced=True)
        write_durably(self._file, self._record())
        if self._telling is not None:
            self._telling.tell(made, there=True)
        answer = v1.Device(
            request_names=[result["request"]],
            pool_name=result["pool"],
            device_name=result["device"],
            cdi_device_ids=[f"{_KIND}={device_id(claim.uid, result['device'])}"],
        )
        return v1.NodePrepareResourceResponse(devices=[answer])

    def _unprepare(self, uid: str) -> None:
        made = self._made.pop(uid)
        self._slices.destroy(made)
        self._spec(uid).unlink()
        write_durably(self._file, self._record())
        if self._telling is not None:
            self._telling.tell(made, there=False)

    def _record(self) -> bytes:
        return msgspec.json.encode(self._made)

    def _spec(self, uid: str) -> Path:
        return self._directory / f"spec-{uid}.json"

    def _edits(self, made: Made) -> bytes:
        """The claim's CDI spec: the GPU's node, and both instances' by the numbers they have.

        The driver's files are the same for all claims, and stand in a spec of their own.
        """
        gpu = made.device.minor
        nodes = [{"path": f"/dev/nvidia{gpu}", "type": "c", "major": _GPU_MAJOR, "minor": gpu}]
        folder = f"{self._capabilities}/gpu{gpu}/mig/gi{made.gi}"
        for access in (f"{folder}/access", f"{folder}/ci{made.ci}/access"):
            minor = int(_read(access).split(maxsplit=2)[1])
            node = f"/dev/nvidia-caps/nvidia-cap{minor}"
            nodes.append({"path": node, "type": "c", "major": _CAPS_MAJOR, "minor": minor})
        name = device_id(made.claim.uid, str(made.device))
        return msgspec.json.encode(
            {
                "cdiVersion": "0.5.0",
                "kind": _KIND,
                "devices": [{"name": name, "containerEdits": {"deviceNodes": nodes}}],
            }
        )


def _read(path: str) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, _MOST_BYTES)
    finally:
        os.close(descriptor)


_FILE = click.Path(path_type=Path)


@click.command()
@click.option("--socket", type=_FILE, required=True, help="Where it serves kubelet.")
@click.option("--kubeconfig", required=True, help="The API server.")
@click.option("--host-root", type=_FILE, required=True, help="Root of the driver's /proc.")
@click.option("--directory", type=_FILE, required=True, help="Where its files go.")
@click.option("--tells", is_flag=True, help="Write claims' statuses and the MigNode as well.")
def main(
    *,
    socket: Path,
    kubeconfig: str,
    host_root: Path,
    directory: Path,
    tells: bool,
) -> None:
    """Serve until SIGTERM."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    pynvml.nvmlInit()
    api = KubeApi.connect(kubeconfig, user_agent="least")
    telling = Telling(api) if tells else None
    least = Least(api, host=host_root, directory=directory, telling=telling)
    server = SocketServer(
        socket,
        register=lambda grpc: v1_grpc.add_DRAPluginServicer_to_server(least, grpc),
        workers=2,
    )
    server.start()
    stop.wait()
    server.stop(1)
    if telling is not None:
        telling.stop()
    api.close()


if __name__ == "__main__":
    main()
