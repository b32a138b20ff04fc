"""Plugins as kubelet knows them: registered through sockets, and asked."""

from __future__ import annotations

import logging
import os
import re
import stat
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

from api.kubelet.dra.v1 import api_pb2 as v1
from api.kubelet.dra.v1 import api_pb2_grpc as v1_grpc
from api.kubelet.pluginregistration.v1 import api_pb2, api_pb2_grpc
from dra.gpu.inventory import ClaimRef
from dra.kube.timing import Backoff


class KubeletError(Exception):
    """Something that kubelet reports and tries again."""


class RegistrationError(KubeletError):
    """A plugin's answer to GetInfo is not acceptable."""


class ClaimError(KubeletError):
    """A claim cannot be prepared or unprepared now."""


class ContainerError(KubeletError):
    """A runtime would refuse to create the container."""


_FILE = "registered_drivers"


def write_registered(root: Path, drivers: Iterable[str]) -> None:
    """Replaces the record."""
    (root / _FILE).write_text("".join(f"{driver}\n" for driver in sorted(drivers)))


def is_registered(root: Path, driver: str) -> bool:
    """True if the kubelet of this root has a plugin of the driver."""
    try:
        return driver in (root / _FILE).read_text().splitlines()
    except FileNotFoundError:
        return False


class PluginRegistry:
    """Registered plugins. A driver may have several, during a rolling update. Thread-safe.

    ``root`` is kubelet's, for the record of who is registered.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        write_registered(root, ())
        self._lock = threading.Lock()
        self._plugins: dict[str, list[Plugin]] = {}

    def add(self, plugin: Plugin) -> None:
        """Registers a plugin.

        Raises:
            RegistrationError: this endpoint is registered for the driver already.
        """
        with self._lock:
            siblings = self._plugins.setdefault(plugin.driver, [])
            if any(other.endpoint == plugin.endpoint for other in siblings):
                raise RegistrationError(
                    f"the endpoint {plugin.endpoint} is already registered for DRA driver "
                    f"{plugin.driver}"
                )
            siblings.append(plugin)
            self._write()

    def remove(self, plugin: Plugin) -> None:
        """De-registers and disconnects a plugin."""
        with self._lock:
            siblings = self._plugins.get(plugin.driver, [])
            if plugin in siblings:
                siblings.remove(plugin)
            if not siblings:
                self._plugins.pop(plugin.driver, None)
            self._write()
        plugin.close()

    def get(self, driver: str) -> Plugin | None:
        """The newest plugin of the driver, if there is one."""
        with self._lock:
            siblings = self._plugins.get(driver, [])
            return siblings[-1] if siblings else None

    def close(self) -> None:
        """Disconnects all."""
        with self._lock:
            plugins = [plugin for siblings in self._plugins.values() for plugin in siblings]
            self._plugins.clear()
        for plugin in plugins:
            plugin.close()

    def _write(self) -> None:
        write_registered(self._root, self._plugins)


CALL_SECONDS = 45.0
"""Time limit of kubelet for each call (defaultClientCallTimeout)."""

SERVICE = "v1.DRAPlugin"
"""The service that is called, of those that kubelet knows (servicesSupportedByKubelet)."""


@dataclass(frozen=True, slots=True)
class PreparedDevice:
    """A device of a NodePrepareResources response; no request names means all requests."""

    request_names: tuple[str, ...]
    pool: str
    device: str
    cdi_ids: tuple[str, ...]


class Plugin:
    """A connection to the DRA service of one plugin instance, re-made when it was lost."""

    def __init__(self, *, driver: str, endpoint: str) -> None:
        self.driver = driver
        self.endpoint = endpoint
        self._channel = grpc.insecure_channel(
            f"unix:{endpoint}",
            options=[("grpc.max_reconnect_backoff_ms", 1000), ("grpc.enable_http_proxy", 0)],
        )
        self._stub: Any = v1_grpc.DRAPluginStub(self._channel)

    def close(self) -> None:
        """Ends the connection."""
        self._channel.close()

    def prepare(
        self, claims: Iterable[ClaimRef], *, seconds: float = CALL_SECONDS
    ) -> dict[str, tuple[PreparedDevice, ...]]:
        """NodePrepareResources: claim UID to its devices.

        Raises:
            ClaimError: the call failed, or its answer lacks a claim, has an unknown one or an error
                for one.
        """
        asked = {claim.uid: claim for claim in claims}
        request = v1.NodePrepareResourcesRequest(claims=self._claims(asked.values()))
        answers = self._call("NodePrepareResources", request, seconds=seconds)
        _check(self.driver, "NodePrepareResources", asked, answers)
        return {
            uid: tuple(
                PreparedDevice(
                    request_names=tuple(device.request_names),
                    pool=device.pool_name,
                    device=device.device_name,
                    cdi_ids=tuple(device.cdi_device_ids),
                )
                for device in answer.devices
            )
            for uid, answer in answers.items()
        }

    def unprepare(self, claims: Iterable[ClaimRef], *, seconds: float = CALL_SECONDS) -> None:
        """NodeUnprepareResources.

        Raises:
            ClaimError: as for :meth:`prepare`.
        """
        asked = {claim.uid: claim for claim in claims}
        request = v1.NodeUnprepareResourcesRequest(claims=self._claims(asked.values()))
        answers = self._call("NodeUnprepareResources", request, seconds=seconds)
        _check(self.driver, "NodeUnprepareResources", asked, answers)

    def _claims(self, claims: Iterable[ClaimRef]) -> list[Any]:
        return [v1.Claim(namespace=c.namespace, uid=c.uid, name=c.name) for c in claims]

    def _call(self, method: str, request: Any, *, seconds: float) -> dict[str, Any]:
        try:
            return dict(getattr(self._stub, method)(request, timeout=seconds).claims)
        except grpc.RpcError as error:
            call: Any = error  # what a stub raises is a grpc.Call as well
            raise ClaimError(
                f"{method} of DRA driver {self.driver}: {call.code()}: {call.details()}"
            ) from error
        except ValueError as error:
            raise ClaimError(f"{method} of DRA driver {self.driver}: {error}") from error


def _check(
    driver: str, method: str, asked: Mapping[str, ClaimRef], answers: Mapping[str, Any]
) -> None:
    for uid, answer in answers.items():
        if uid not in asked:
            raise ClaimError(f"{method} of DRA driver {driver} answered for unknown claim {uid}")
        if answer.error:
            raise ClaimError(
                f"{method} of DRA driver {driver} failed for claim {asked[uid]}: {answer.error}"
            )
    if missing := len(asked) - len(answers):
        raise ClaimError(f"{method} of DRA driver {driver} skipped {missing} ResourceClaims")


_log = logging.getLogger(__name__)

GET_INFO_SECONDS = 1.0
NOTIFY_SECONDS = 5.0
_DIAL_SECONDS = 10.0
_MAX_DRIVER_NAME = 63
_DNS_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")


@dataclass(slots=True)
class _Socket:
    """A registration socket; another identity under the same path is another socket."""

    path: str
    identity: tuple[int, int]
    plugin: Plugin | None = None
    retry_at: float = 0.0
    backoff: Backoff = field(default_factory=lambda: Backoff(first=0.5, limit=122.0))


class RegistrationLoop:
    """Keeps the registry equal to the sockets below ``directory``, in one thread."""

    def __init__(
        self, directory: Path, registry: PluginRegistry, *, poll_seconds: float = 0.2
    ) -> None:
        self._directory = directory
        self._registry = registry
        self._poll_seconds = poll_seconds
        self._sockets: dict[str, _Socket] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="registration", daemon=True)

    def start(self) -> None:
        """Begins to watch; the directory is made if it is missing."""
        self._directory.mkdir(parents=True, exist_ok=True)
        self._thread.start()

    def stop(self) -> None:
        """Stops watching; plugins stay registered."""
        self._stopping.set()
        self._thread.join(_DIAL_SECONDS)

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._reconcile()
            except OSError as error:
                _log.warning("%s: %s", self._directory, error)
            self._stopping.wait(self._poll_seconds)

    def _reconcile(self) -> None:
        present = {s.path: s for s in find_sockets(self._directory)}
        for path, known in list(self._sockets.items()):
            found = present.get(path)
            if found is None or found.identity != known.identity:
                self._deregister(known)
                del self._sockets[path]
        for path, found in present.items():
            known = self._sockets.setdefault(path, found)
            if known.plugin is None and time.monotonic() >= known.retry_at:
                self._register(known)

    def _register(self, socket: _Socket) -> None:
        try:
            socket.plugin = register(socket.path, self._registry)
        except (RegistrationError, grpc.RpcError) as error:
            delay = socket.backoff.next_delay()
            socket.retry_at = time.monotonic() + delay
            _log.warning("%s: not registered, again in %.1f s: %s", socket.path, delay, error)
        else:
            _log.info(
                "registered DRA driver %s at %s", socket.plugin.driver, socket.plugin.endpoint
            )

    def _deregister(self, socket: _Socket) -> None:
        if socket.plugin is not None:
            _log.info("%s is gone: de-registered %s", socket.path, socket.plugin.driver)
            self._registry.remove(socket.plugin)


def find_sockets(directory: Path) -> list[_Socket]:
    """The sockets below a directory; names that start with a dot are left out."""
    found = []
    for parent, folders, files in os.walk(directory):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in files:
            path = os.path.join(parent, name)  # noqa: PTH118 - polled five times a second
            try:
                status = os.stat(path)  # noqa: PTH116 - the same
            except FileNotFoundError:
                continue
            if stat.S_ISSOCK(status.st_mode) and not name.startswith("."):
                found.append(_Socket(path, (status.st_ino, status.st_mtime_ns)))
    return found


def register(path: str, registry: PluginRegistry) -> Plugin:
    """Dials a registration socket, asks, registers, and tells the plugin how it went.

    Raises:
        RegistrationError: the plugin is not acceptable; it has been told why.
        grpc.RpcError: it does not answer; a plugin that cannot be told is not registered.
    """
    # Not closed by hand: grpc's thread that waited for the connection raises when the channel is
    # closed under it. The channel ends with the last reference.
    channel = grpc.insecure_channel(f"unix:{path}")
    try:
        grpc.channel_ready_future(channel).result(timeout=_DIAL_SECONDS)
    except grpc.FutureTimeoutError as error:
        raise RegistrationError(f"nobody answers at {path}") from error
    stub = api_pb2_grpc.RegistrationStub(channel)
    info = stub.GetInfo(api_pb2.InfoRequest(), timeout=GET_INFO_SECONDS)
    try:
        _check_info(info)
        plugin = Plugin(driver=info.name, endpoint=info.endpoint or path)
        try:
            registry.add(plugin)
        except RegistrationError:
            plugin.close()
            raise
    except RegistrationError as error:
        stub.NotifyRegistrationStatus(
            api_pb2.RegistrationStatus(plugin_registered=False, error=str(error)),
            timeout=NOTIFY_SECONDS,
        )
        raise
    try:
        stub.NotifyRegistrationStatus(
            api_pb2.RegistrationStatus(plugin_registered=True), timeout=NOTIFY_SECONDS
        )
    except grpc.RpcError:
        registry.remove(plugin)
        raise
    return plugin


def _check_info(info: api_pb2.PluginInfo) -> None:
    if info.type != "DRAPlugin":
        raise RegistrationError(f"no handler for plugin type {info.type!r}: want 'DRAPlugin'")
    if len(info.name) > _MAX_DRIVER_NAME or not _DNS_SUBDOMAIN.fullmatch(info.name):
        raise RegistrationError(
            f"DRA driver name {info.name!r} is no DNS subdomain of at most 63 characters"
        )
    if SERVICE not in info.supported_versions:
        raise RegistrationError(
            f"no supported service in {list(info.supported_versions)}: kubelet has {SERVICE!r}"
        )
