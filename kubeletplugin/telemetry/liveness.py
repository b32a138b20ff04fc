"""Liveness and readiness of the plugin, as kubelet's probes are told.

Alive is a plugin that kubelet can call and whose threads run: only what a restart would mend makes
it dead. Ready is one that serves claims, or that stands by while another serves them: during an
update kubelet ends the old plugin only when the new one is ready, and the new one serves only when
the old one has ended.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path

import grpc

from api.kubelet.pluginregistration.v1 import api_pb2 as registration
from api.kubelet.pluginregistration.v1 import api_pb2_grpc as registration_grpc
from dra.monitoring.probes import Probes, Pulse
from kubeletplugin.sockets import Sockets
from kubeletplugin.telemetry.readiness import Readiness

STUCK_SECONDS = 1800.0
"""More than a round of any loop takes, with every GPU hanging and no API server."""
_ANSWER_SECONDS = 4.0
_STARTING = "the GPUs are still being looked at"


class Liveness:
    """Feeds the probes of one process."""

    def __init__(self, probes: Probes) -> None:
        self._probes = probes
        self.hardware = Pulse(STUCK_SECONDS)
        self.janitor = Pulse(STUCK_SECONDS)
        self._overdue: Callable[[], str] = str
        probes.ready.add("claims", lambda: "the plugin has not begun to serve")

    def stand_by(self) -> None:
        """Another plugin serves this node, and this one will when that has ended."""
        self._probes.ready.add("claims", str)

    def begin(
        self,
        sockets: Sockets,
        readiness: Readiness,
        *,
        threads: Iterable[Callable[[], str]],
        overdue: Callable[[], str] = str,
    ) -> None:
        """Check sockets and threads from now on, as all of them are to be there.

        ``threads`` are the checks of the threads that must run (``Loop.problem``).
        ``overdue`` says why this process should have ended of its own accord by now.
        """
        self._overdue = overdue
        live = self._probes.live
        live.add("registration socket", lambda: _answers(sockets.registration))
        live.add("service socket", lambda: _accepts(sockets.service))
        checks = tuple(threads)
        live.add("threads", lambda: ", ".join(filter(None, (check() for check in checks))))
        live.add("hardware loop", self.hardware)
        live.add("janitor", self.janitor)
        live.add("end", overdue)
        self._probes.ready.add(
            "claims",
            lambda: "" if readiness.is_ready else readiness.reason or _STARTING,
        )

    def end(self) -> None:
        """The plugin stops: nothing is asked of it any more."""
        self._probes.live.clear()
        self._probes.live.add("end", self._overdue)
        self._probes.ready.add("claims", lambda: "the plugin is stopping")


def _accepts(path: Path) -> str:
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(_ANSWER_SECONDS)
            connection.connect(str(path))
    except OSError as error:
        return f"{path}: {error.strerror or error}"
    return ""


def _answers(path: Path) -> str:
    """Kubelet's first question, to our own server. It needs no GPU and no API server."""
    if problem := _accepts(path):
        return problem
    with closing(grpc.insecure_channel(f"unix:{path}")) as channel:
        try:
            registration_grpc.RegistrationStub(channel).GetInfo(
                registration.InfoRequest(), timeout=_ANSWER_SECONDS
            )
        except grpc.RpcError as error:
            return f"{path} does not answer: {error!r}"
    return ""
