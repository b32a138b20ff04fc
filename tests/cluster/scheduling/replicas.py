"""Several controllers of which one leads."""

from __future__ import annotations

import contextlib
import os
import signal
from typing import TYPE_CHECKING, Self

from dra.kube.lease import LEADERS, leader_lease
from hack.cluster import controlplane
from sim.processes import wait_for
from tests.cluster.harness.daemons import DRIVER, daemon

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from hack.cluster.controlplane import ControlPlane
    from sim.processes import Process


class Replicas:
    """Controllers by identity, with further flags; entering starts them, leaving ends them."""

    def __init__(
        self, control_plane: ControlPlane, root: Path, *identities: str, flags: tuple[str, ...] = ()
    ) -> None:
        self._api = control_plane.api
        kubeconfig = str(control_plane.kubeconfig(controlplane.MIG_CONTROLLER))
        common = ("controller", "--kubeconfig", kubeconfig)
        self.processes: dict[str, Process] = {
            name: daemon(f"controller-{name}", *common, *flags, "--identity", name, logs=root)
            for name in identities
        }
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            for process in self.processes.values():
                stack.callback(process.stop)
                process.start()
            self.wait_for_leader()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes.values():
            if process.running:
                os.kill(process.pid, signal.SIGCONT)
        self._stack.close()

    def leader(self) -> str:
        """Who holds the lease, empty for nobody."""
        lease = self._api.find("Lease", leader_lease(DRIVER), namespace=LEADERS)
        return str(lease["spec"].get("holderIdentity") or "") if lease else ""

    def wait_for_leader(self, *, other_than: str = "") -> str:
        """The leader's identity, once it is not `other_than`."""

        def found() -> str:
            leader = self.leader()
            return leader if leader in self.processes and leader != other_than else ""

        return wait_for("leader", found, timeout=60, context=self.tails)

    @contextlib.contextmanager
    def frozen(self, identity: str) -> Iterator[None]:
        """The process does not get on inside the block, and does not know it."""
        pid = self.processes[identity].pid
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)

    def tails(self) -> str:
        """The ends of the logs of all."""
        return "\n".join(process.tail() for process in self.processes.values())
