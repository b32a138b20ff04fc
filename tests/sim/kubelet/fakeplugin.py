"""A DRA plugin of a few lines, whose answers a test chooses."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

from api.kubelet.dra.v1 import api_pb2 as v1
from api.kubelet.dra.v1 import api_pb2_grpc as v1_grpc
from api.kubelet.pluginregistration.v1 import api_pb2, api_pb2_grpc
from tests.sim.standins import DRIVER


@dataclass
class FakePlugin:
    """Prepares one device per claim, ``k8s.test/claim=<uid>``, with its CDI spec.

    ``calls`` has ``(method, uids)``; ``prepare_error`` and ``unprepare_error`` are given
    as the error of every claim; ``alter`` may change a prepare answer.
    """

    kubelet_root: Path
    cdi_root: Path
    name: str = DRIVER
    versions: tuple[str, ...] = ("v1.DRAPlugin",)
    kind: str = "DRAPlugin"
    socket: str = "dra.sock"
    request_names: tuple[str, ...] = ()
    prepare_error: str = ""
    unprepare_error: str = ""
    refuse_status: bool = False
    write_spec: bool = True
    alter: Callable[[Any], None] = lambda answer: None
    calls: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)
    statuses: list[tuple[bool, str]] = field(default_factory=list)
    _servers: list[Any] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def registration_socket(self) -> Path:
        return self.kubelet_root / "plugins_registry" / f"{self.name}-{self.socket}-reg.sock"

    def start(self) -> FakePlugin:
        folder = self.kubelet_root / "plugins" / self.name
        folder.mkdir(parents=True, exist_ok=True)
        self.registration_socket.parent.mkdir(parents=True, exist_ok=True)
        endpoint = folder / self.socket
        service = grpc.server(ThreadPoolExecutor(4))
        v1_grpc.add_DRAPluginServicer_to_server(_Service(self), service)
        registrar = grpc.server(ThreadPoolExecutor(2))
        api_pb2_grpc.add_RegistrationServicer_to_server(_Registrar(self, endpoint), registrar)
        for server, path in ((service, endpoint), (registrar, self.registration_socket)):
            server.add_insecure_port(f"unix:{path}")
            server.start()
            self._servers.append(server)
        return self

    def stop(self) -> None:
        for server in reversed(self._servers):
            server.stop(None).wait()
        self._servers.clear()

    def uids(self, method: str) -> list[str]:
        with self._lock:
            return [uid for name, uids in self.calls if name == method for uid in uids]

    def record(self, method: str, uids: tuple[str, ...]) -> None:
        with self._lock:
            self.calls.append((method, uids))


class _Service(v1_grpc.DRAPluginServicer):
    def __init__(self, plugin: FakePlugin) -> None:
        self._plugin = plugin

    def NodePrepareResources(self, request: Any, context: Any) -> Any:  # noqa: N802 - the protocol's
        plugin = self._plugin
        plugin.record("prepare", tuple(c.uid for c in request.claims))
        answer = v1.NodePrepareResourcesResponse()
        for claim in request.claims:
            if plugin.prepare_error:
                answer.claims[claim.uid].error = plugin.prepare_error
                continue
            if plugin.write_spec:
                write_spec(plugin.cdi_root, claim.uid)
            answer.claims[claim.uid].devices.add(
                request_names=plugin.request_names,
                pool_name="pool",
                device_name="gpu-0-mig-1g5gb-19-0",
                cdi_device_ids=[f"k8s.test/claim={claim.uid}"],
            )
        plugin.alter(answer)
        return answer

    def NodeUnprepareResources(self, request: Any, context: Any) -> Any:  # noqa: N802 - the same
        plugin = self._plugin
        plugin.record("unprepare", tuple(c.uid for c in request.claims))
        answer = v1.NodeUnprepareResourcesResponse()
        for claim in request.claims:
            answer.claims[claim.uid].error = plugin.unprepare_error
            if not plugin.unprepare_error:
                (plugin.cdi_root / f"{claim.uid}.json").unlink(missing_ok=True)
        return answer


class _Registrar(api_pb2_grpc.RegistrationServicer):
    def __init__(self, plugin: FakePlugin, endpoint: Path) -> None:
        self._plugin = plugin
        self._endpoint = endpoint

    def GetInfo(self, request: Any, context: Any) -> Any:  # noqa: N802 - the same
        return api_pb2.PluginInfo(
            type=self._plugin.kind,
            name=self._plugin.name,
            endpoint=str(self._endpoint),
            supported_versions=self._plugin.versions,
        )

    def NotifyRegistrationStatus(self, request: Any, context: Any) -> Any:  # noqa: N802 - the same
        self._plugin.statuses.append((request.plugin_registered, request.error))
        if self._plugin.refuse_status:
            context.abort(grpc.StatusCode.INTERNAL, "no")
        return api_pb2.RegistrationStatusResponse()


def write_spec(cdi_root: Path, uid: str) -> Path:
    cdi_root.mkdir(parents=True, exist_ok=True)
    path = cdi_root / f"{uid}.json"
    node = {"path": "/dev/nvidia0", "type": "c", "major": 195, "minor": 0}
    edits = {"env": ["SLICE=one"], "deviceNodes": [node]}
    spec = {
        "cdiVersion": "0.6.0",
        "kind": "k8s.test/claim",
        "devices": [{"name": uid, "containerEdits": edits}],
        "containerEdits": {"env": ["COMMON=1", "SLICE=none"]},
    }
    path.write_text(json.dumps(spec))
    return path
