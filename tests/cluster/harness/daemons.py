"""The driver's two daemons as separate processes, over simulated GPUs."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Self

from hack.cluster import controlplane
from hack.cluster.chart import REPOSITORY
from sim.processes import Process, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hack.cluster.controlplane import ControlPlane


DRIVER = "mig.dra.dev"


def registrations(plugin: Process) -> int:
    """How often kubelet has told a plugin that it is registered."""
    return plugin.log.read_text().count("registered with kubelet as") if plugin.log.exists() else 0


def start_registered(plugin: Process) -> None:
    """Starts a plugin, and returns once kubelet has registered it."""
    seen = registrations(plugin)
    plugin.start()
    wait_for("registration", lambda: registrations(plugin) > seen, context=plugin.tail)


def daemon(name: str, *arguments: str, logs: Path) -> Process:
    """A program of this repository, `python -m` with the given arguments; not yet started."""
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "PYTHONUNBUFFERED": "1"}
    return Process(name, _python(*arguments), logs=logs, environment=environment)


def _python(*arguments: str) -> list[str]:
    return [sys.executable, "-m", *arguments]


class Hardware:
    """The simulated GPUs of one node.

    Args:
        root: a directory to make; holds the GPUs' state and the host's file tree.
        gpus: product names, for example `A100-SXM4-40GB`.
        mig: whether their MIG mode is on.
    """

    def __init__(self, root: Path, *, gpus: tuple[str, ...], mig: bool = True) -> None:
        self.state = root / "gpus"
        self.host_root = root / "host"
        flags = [flag for gpu in gpus for flag in ("--gpu", gpu)]
        flags += [] if mig else ["--no-mig"]
        command = _python("sim", "nvml", "init", "--state", str(self.state), *flags)
        command += ["--host-root", str(self.host_root)]
        subprocess.run(command, check=True, capture_output=True, cwd=REPOSITORY, timeout=60)

    def contents(self) -> dict[str, bytes]:
        """Every file of the state and of the host's tree: equal means that nothing changed.

        Without the list of processes that have NVML open, which any new process is on.
        """
        clients = self.state / "clients"
        files = [
            path
            for top in (self.state, self.host_root)
            for path in sorted(top.rglob("*"))
            if path.is_file()
            and path.suffix not in {".lock", ".sock"}
            and not path.is_relative_to(clients)
        ]
        return {str(path): path.read_bytes() for path in files}

    def caps_major(self) -> int:
        """The major number of nvidia-caps device nodes."""
        lines = (self.host_root / "proc/devices").read_text().splitlines()
        (major,) = (line.split()[0] for line in lines if line.endswith(" nvidia-caps"))
        return int(major)

    def caps_minor(self, *, gpu: int, instance: str) -> int:
        """The minor number of an instance's node; `instance` is `gi<G>` or `gi<G>/ci<C>`."""
        capabilities = self.host_root / f"proc/driver/nvidia/capabilities/gpu{gpu}/mig"
        access = (capabilities / instance / "access").read_text()
        (minor,) = (
            line.split(":")[1] for line in access.splitlines() if line.startswith("DeviceFileMinor")
        )
        return int(minor)


class Driver:
    """Controller and plugins; entering starts them, leaving ends them.

    Args:
        control_plane: knows the users of both daemons.
        root: an existing directory with a short path.
        name: of the DRA driver.
        schedulers: whose pods are served; none but kube-scheduler's unless given.
    """

    def __init__(
        self,
        control_plane: ControlPlane,
        root: Path,
        *,
        name: str = DRIVER,
        schedulers: tuple[str, ...] = (),
        controller_flags: tuple[str, ...] = (),
    ) -> None:
        self.control_plane = control_plane
        self._name = name
        self._root = root
        self._logs = root / "logs"
        self._logs.mkdir()
        self.hardware: dict[str, Hardware] = {}
        self.plugins: dict[str, Process] = {}
        self._arguments: dict[str, tuple[str, ...]] = {}
        self.controller = self._process(
            "controller",
            *("controller", "--identity", "test"),
            *("--driver-name", name),
            *("--kubeconfig", str(control_plane.kubeconfig(controlplane.MIG_CONTROLLER))),
            *(f"--scheduler={each}" for each in schedulers),
            *controller_flags,
        )
        self._stack = contextlib.ExitStack()

    def add_node(
        self,
        name: str,
        *flags: str,
        gpus: tuple[str, ...],
        kubelet_root: Path,
        cdi_root: Path,
        mig: bool = True,
    ) -> None:
        """Gives a node GPUs and a plugin with further flags, which starts with the driver."""
        home = self._root / name
        kubelet_root.mkdir(parents=True, exist_ok=True)
        hardware = Hardware(home, gpus=gpus, mig=mig)
        self.hardware[name] = hardware
        self._arguments[name] = (
            *("sim", "plugin", "--hardware", str(hardware.state), "--"),
            *("--node-name", name, "--state-dir", str(self.state(name))),
            *("--driver-name", self._name),
            *("--kubeconfig", str(self.control_plane.kubeconfig(controlplane.MIG_PLUGIN))),
            *("--kubelet-root", str(kubelet_root), "--cdi-root", str(cdi_root)),
            *("--host-root", str(hardware.host_root), "--driver-root", str(hardware.host_root)),
            *flags,
        )
        self.plugins[name] = self._process(f"plugin-{name}", *self._arguments[name])

    def successor(self, name: str, *flags: str) -> Process:
        """Another plugin for a node, as a rolling update starts it; not yet started."""
        label = "-".join(flag.strip("-").rpartition("/")[2] for flag in flags)
        return self._process(f"plugin-{name}-{label}", *self._arguments[name], *flags)

    @contextlib.contextmanager
    def in_place(self, name: str, *flags: str) -> Iterator[Process]:
        """A plugin with further flags in the place of the usual one, which is back afterwards."""
        usual, other = self.plugins[name], self.successor(name, *flags)
        usual.stop(grace=30)
        self.plugins[name] = other
        start_registered(other)
        try:
            yield other
        finally:
            other.stop(grace=30)
            self.plugins[name] = usual
            start_registered(usual)

    def state(self, name: str) -> Path:
        """Where the plugin of a node keeps its journal."""
        return self._root / name / "state"

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            for process in self.processes():
                stack.callback(process.stop)
                process.start()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def processes(self) -> list[Process]:
        """All daemons."""
        return [self.controller, *self.plugins.values()]

    def tails(self) -> str:
        """The ends of the logs of all daemons."""
        return "\n".join(process.tail() for process in self.processes())

    def _process(self, name: str, *arguments: str) -> Process:
        return daemon(name, *arguments, logs=self._logs)
