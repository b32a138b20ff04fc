"""Readiness to serve claims, and liveness, for kubelet's probes.

The plugin is alive if kubelet can call it and its threads run; only faults that a restart would end
make liveness fail. The plugin is ready if it serves claims, or waits while another plugin serves
them: in an update the old pod is ended only when the new one is ready, and the new one serves only
when the old one has ended.
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
    """Readiness to serve claims, with the reason if not ready. Thread-safe.

    While the plugin starts it is not ready and the reason is empty; calls wait then, as kubelet
    repeats a failed call only after a minute or more. ``on_change``: called after each change,
    without a lock.
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
        """Refuse all calls with ``reason`` from now on."""
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
        """Wait until it is ready or has a reason not to be; False after ``timeout`` seconds."""
        with self._condition:
            return self._condition.wait_for(lambda: self._ready or bool(self._reason), timeout)

    def wait_ready(self, timeout: float) -> None:
        """Wait until ready, at most ``timeout`` seconds and only while the plugin starts.

        Raises:
            StartingError: the plugin is not ready for a reason, or the start takes longer.
        """
        with self._condition:
            self._condition.wait_for(lambda: self._ready or self._reason, timeout)
            if not self._ready:
                raise StartingError(
                    self._reason or "the plugin is still looking at its GPUs; it is tried again"
                )


class Liveness:
    """Checks behind the liveness and readiness probes of this process."""

    def __init__(self, probes: Probes) -> None:
        self._probes = probes
        self.hardware = Pulse(times.STUCK_SECONDS)
        self.janitor = Pulse(times.STUCK_SECONDS)
        self._overdue: Callable[[], str] = str
        probes.ready.add("claims", lambda: "the plugin has not begun to serve")

    def stand_by(self, problem: str) -> None:
        """Wait for the end of another plugin; count as ready meanwhile if there is no problem."""
        self._probes.ready.add("claims", lambda: problem)

    def begin(
        self,
        sockets: Sockets,
        readiness: Readiness,
        *,
        threads: Iterable[Callable[[], str]],
        overdue: Callable[[], str] = str,
    ) -> None:
        """Check sockets and threads from now on.

        ``threads``: checks of the threads that must run (``Loop.problem``). ``overdue``: returns
        why this process should have ended by itself by now; empty if it should not have.
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

    def responds(self) -> bool:
        """True if no check fails, and the GPUs were looked at lately."""
        return (
            self.hardware.silence < times.LOOK_OVERDUE_SECONDS and not self._probes.live.problems()
        )

    def end(self) -> None:
        """End the checks, except ``overdue``, as the plugin stops; it is no longer ready."""
        self._probes.live.clear()
        self._probes.live.add("end", self._overdue)
        self._probes.ready.add("claims", lambda: "the plugin is stopping")


def _accepts(path: Path) -> str:
    error = connect(path, times.PROBE_SECONDS)
    return f"{path}: {error.strerror or error}" if error is not None else ""


def _answers(path: Path) -> str:
    """Call GetInfo, as kubelet does first, on our own server; returns the problem, or empty.

    The call needs no GPU and no API server.
    """
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
