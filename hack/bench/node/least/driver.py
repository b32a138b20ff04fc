"""Answers of the least driver to kubelet's calls."""

from __future__ import annotations

import os
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

from api.kubelet.dra.v1 import api_pb2 as v1
from api.kubelet.dra.v1 import api_pb2_grpc as v1_grpc
from api.mignode import ClaimRef
from cdi.files import write_durably, write_whole
from cdi.spec import claim_kind, device_id
from dra.common.resources import RESOURCE_CLAIMS
from dra.gpu.names import DEFAULT_DRIVER, MigDevice, parse_device
from dra.kube.client import KubeApi
from hack.bench.node.least.slices import Made, Slices
from hack.bench.node.least.telling import Telling

_KIND = claim_kind(DEFAULT_DRIVER)
_GPU_MAJOR, _CAPS_MAJOR = 195, 234
_MOST_BYTES = 4096


class Least(v1_grpc.DRAPluginServicer):
    """kubelet's calls. ``parts`` has each Prepare's GET, calls of NVML, and writes so far."""

    def __init__(
        self, api: KubeApi, *, host: Path, directory: Path, telling: Telling | None
    ) -> None:
        self._api = api
        self._capabilities = f"{host}/proc/driver/nvidia/capabilities"
        self._directory, self._file = directory, directory / "record.json"
        self._telling = telling
        self._slices = Slices()
        self._made: dict[str, Made] = {}
        self.parts: dict[str, list[float]] = {"get": [], "nvml": [], "writes": []}

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
        times = [time.perf_counter()]
        found = self._api.get(RESOURCE_CLAIMS, claim.name, namespace=claim.namespace)
        times.append(time.perf_counter())
        [result] = found["status"]["allocation"]["devices"]["results"]
        device = parse_device(result["device"])
        if not isinstance(device, MigDevice):
            raise TypeError(f"{device} is no slice")
        ref = ClaimRef(namespace=claim.namespace, name=claim.name, uid=claim.uid)
        intent = self._made[claim.uid] = Made(ref, result["pool"], device)
        write_whole(self._file, self._record())
        times.append(time.perf_counter())
        made = self._made[claim.uid] = self._slices.create(intent)
        times.append(time.perf_counter())
        write_whole(self._spec(claim.uid), self._edits(made), synced=True)
        write_durably(self._file, self._record())
        times.append(time.perf_counter())
        self._count(times)
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

    def _count(self, times: list[float]) -> None:
        get, intent, nvml, rest = (1e3 * (after - before) for before, after in pairwise(times))
        self.parts["get"].append(get)
        self.parts["nvml"].append(nvml)
        self.parts["writes"].append(intent + rest)

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
