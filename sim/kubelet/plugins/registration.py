"""Registration of plugins: their sockets in plugins_registry appear and go, and they with them."""

from __future__ import annotations

import logging
import os
import re
import stat
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import grpc

from api.kubelet.pluginregistration.v1 import api_pb2, api_pb2_grpc
from dra.kube.timing import Backoff
from sim.kubelet.errors import RegistrationError
from sim.kubelet.plugins.plugin import SERVICES, Plugin
from sim.kubelet.plugins.registry import PluginRegistry

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
        plugin = Plugin(
            driver=info.name,
            endpoint=info.endpoint or path,
            service=_service(info),
        )
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


def _service(info: api_pb2.PluginInfo) -> str:
    """The first service of the plugin's list that kubelet knows."""
    if info.type != "DRAPlugin":
        raise RegistrationError(f"no handler for plugin type {info.type!r}: want 'DRAPlugin'")
    if len(info.name) > _MAX_DRIVER_NAME or not _DNS_SUBDOMAIN.fullmatch(info.name):
        raise RegistrationError(
            f"DRA driver name {info.name!r} is no DNS subdomain of at most 63 characters"
        )
    for version in info.supported_versions:
        if version in SERVICES:
            return version
    raise RegistrationError(
        f"no supported service in {list(info.supported_versions)}: kubelet has {list(SERVICES)}"
    )
