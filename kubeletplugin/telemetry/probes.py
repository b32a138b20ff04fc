"""Readiness to serve claims, and liveness, as kubelet's probes are told.

Alive is a plugin that kubelet can call and whose threads run: only what a restart would mend makes
it dead. Ready is one that serves claims, or that stands by while another serves them: during an
update kubelet ends the old plugin only when the new one is ready, and the new one serves only when
the old one has ended.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path

import grpc

from api.kubelet.pluginregistration.v1 import api_pb2 as registration
from api.kubelet.pluginregistration.v1 import api_pb2_grpc as registration_grpc
from dra.monitoring.probes import Probes, Pulse
from kubeletplugin import times
from kubeletplugin.errors import StartingError
from kubeletplugin.sockets import Sockets, connect

_STARTING = "the GPUs are still being looked at"


class Readiness:
    """Not ready until hardware is known and recovered; thread-safe.

    While the plugin starts there is no reason, and callers wait: kubelet repeats a failed call only
    after a minute or more. ``on_change`` is called after each change, without a lock.
    """

    def __init__(self, *, on_change: Callable[[], None]) -> None:
        self._on_change = on_change
        self._condition = threading.Condition()
        self._ready = False
        self._reason = ""

    def set_ready(self) -> None:
        """Serve claims from now on."""
        with self._condition:
            self._ready, self._reason = True, ""
            self._condition.notify_all()
        self._on_change()

    def set_unready(self, reason: str) -> None:
        """Turn all callers away with ``reason`` from now on."""
        with self._condition:
            self._ready, self._reason = False, reason
            self._condition.notify_all()
        self._on_change()

    @property
    def reason(self) -> str:
        """Reason for not being ready; empty when ready, or while the plugin starts."""
        with self._condition:
            return self._reason

    @property
    def is_ready(self) -> bool:
        """True if claims are served."""
        with self._condition:
            return self._ready

    def wait_decided(self, timeout: float) -> bool:
        """Wait until it is ready, or has a reason not to be; False if neither came in time."""
        with self._condition:
            return self._condition.wait_for(lambda: self._ready or bool(self._reason), timeout)

    def wait_ready(self, timeout: float) -> None:
        """Wait at most ``timeout`` seconds for a start that is under way.

        Raises:
            StartingError: not ready for a reason, or the start takes longer.
        """
        with self._condition:
            self._condition.wait_for(lambda: self._ready or self._reason, timeout)
            if not self._ready:
                raise StartingError(
                    self._reason or "the plugin is still looking at its GPUs; it is tried again"
                )


class Liveness:
    """Feeds the probes of one process."""

    def __init__(self, probes: Probes) -> None:
        self._probes = probes
        self.hardware = Pulse(times.STUCK_SECONDS)
        self.janitor = Pulse(times.STUCK_SECONDS)
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
    error = connect(path, times.PROBE_SECONDS)
    return f"{path}: {error.strerror or error}" if error is not None else ""


def _answers(path: Path) -> str:
    """Kubelet's first question, to our own server. It needs no GPU and no API server."""
    if problem := _accepts(path):
        return problem
    with closing(grpc.insecure_channel(f"unix:{path}")) as channel:
        try:
            registration_grpc.RegistrationStub(channel).GetInfo(
                registration.InfoRequest(), timeout=times.PROBE_SECONDS
            )
        except grpc.RpcError as error:
            return f"{path} does not answer: {error!r}"
    return ""
