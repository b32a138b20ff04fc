"""One real kubelet with its own container runtime, cgroup and directories."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
from pathlib import Path
from typing import Any, Self

from dra.common.resources import Obj, at
from hack.cluster.binaries import Binaries
from hack.cluster.containerd import Containerd
from hack.cluster.controlplane import ControlPlane, node_user
from hack.cluster.machine import COMPILED_IN, Cgroup, HostState, MountNamespace, free_ports
from sim.processes import Process, wait_for


def is_ready(node: Obj) -> bool:
    """True if pods can be scheduled to a node: condition Ready and no taint."""
    conditions = at(node, "status", "conditions")
    ready = any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)
    return ready and not node["spec"].get("taints")


def machine_address() -> str:
    """The address that this machine would send from, or "" without a network.

    A node's address may not be a loopback one. Nothing is sent to find it out.
    """
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # TEST-NET-1 of RFC 5737
        return str(probe.getsockname()[0])
    return ""


class KubeletNode:
    """A node that runs pods; entering starts it, leaving removes every trace of it.

    Args:
        binaries: must hold `binaries.NODE`.
        control_plane: knows `node_user(name)`.
        name: the node's name.
        root: an existing directory with a short path (sockets below it: 107 characters); its
            path names the node's cgroup too.
        shown: an existing directory; the node's processes and containers see `root` there, so
            that one DaemonSet fits all nodes.
        cdi: directory of the CDI specs, below `root` unless given.
    """

    def __init__(  # noqa: PLR0913 - what it runs, and where
        self,
        binaries: Binaries,
        control_plane: ControlPlane,
        *,
        name: str,
        root: Path,
        shown: Path,
        cdi: Path | None = None,
    ) -> None:
        self.name = name
        self.kubelet_root = root / "k"
        self.cdi_root = cdi or root / "cdi"
        self.pod_logs = root / "pod-logs"
        self._root = root
        self._api = control_plane.api
        logs = root / "logs"
        logs.mkdir()
        self.kubelet_root.mkdir()
        self._namespace = MountNamespace(
            "mounts", shown={shown: root, COMPILED_IN: self.kubelet_root}, logs=logs
        )
        self.containerd = Containerd(
            binaries, root / "c", cdi=self.cdi_root, logs=logs, namespace=self._namespace
        )
        self.cgroup = Cgroup("-".join(root.parts[1:]))
        self._host = HostState(self.pod_logs)
        self._gates = dict(control_plane.setup.gates)
        self._authority = control_plane.kubelet_authority
        self._address = machine_address()
        config = self._config_file = root / "kubelet.json"
        config.write_text(json.dumps(self._config(), indent=2))
        kubeconfig = control_plane.kubeconfig(node_user(name))
        self.process = Process(
            "kubelet",
            [
                binaries.path("kubelet"),
                f"--config={config}",
                f"--kubeconfig={kubeconfig}",
                f"--root-dir={self.kubelet_root}",
                f"--cert-dir={root / 'pki'}",
                f"--hostname-override={name}",
                *([f"--node-ip={self._address}"] if self._address else []),
                "--v=2",
            ],
            logs=logs,
            within=self._namespace.within,
        )

    def __enter__(self) -> Self:
        try:
            self.boot()
            wait_for(f"ready node {self.name}", self._ready, timeout=90, context=self.tails)
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._remove()

    def boot(self) -> None:
        """Starts runtime and kubelet; the node may have lost its power before."""
        self.cgroup.create()
        self._host.prepare()
        self._namespace.open()
        self.containerd.start()
        self.process.start()

    def configure(self, **fields: Any) -> None:
        """Changes fields of kubelet's configuration, for which it is started anew."""
        config = json.loads(self._config_file.read_text()) | fields
        self.process.stop()
        self._config_file.write_text(json.dumps(config, indent=2))
        self.process.start()

    def lose_power(self) -> None:
        """Ends kubelet, runtime and containers at once; what is not on a disk is gone."""
        self.process.kill()
        self.containerd.lose_power()
        self.cgroup.remove()
        self._namespace.close()
        shutil.rmtree(self.cdi_root)

    def lose_claims(self) -> None:
        """Takes away the checkpoint of a kubelet that is not running, as people do when corrupt."""
        (self.kubelet_root / "dra_manager_state").unlink()

    def leftovers(self) -> list[str]:
        """Leftovers of this node on the machine: processes, with their mounts, and cgroups."""
        processes = [f"process {pid}" for pid in self._namespace.members()]
        return processes + self.cgroup.directories()

    def tails(self) -> str:
        """The ends of the logs of kubelet and containerd."""
        return f"{self.process.tail()}\n{self.containerd.process.tail()}"

    def log(self, pod: Obj, container: str) -> str:
        """Output of a container of a pod of this node, without the runtime's prefixes."""
        meta = pod["metadata"]
        directory = self.pod_logs / f"{meta['namespace']}_{meta['name']}_{meta['uid']}" / container
        files = [file.read_text() for file in sorted(directory.glob("*.log"))]
        # Each line: time, stream, tag, text.
        lines = [line.split(" ", 3)[3] for file in files for line in file.splitlines()]
        return "\n".join(lines)

    def _ready(self) -> bool:
        self.process.assert_running()
        node = self._api.find("Node", self.name)
        return node is not None and is_ready(node)

    def _remove(self) -> None:
        with contextlib.ExitStack() as last_first:  # a step that fails stops none of the others
            last_first.callback(self._host.restore)
            last_first.callback(self._namespace.close)
            last_first.callback(self.cgroup.remove)
            last_first.callback(self.containerd.stop)
            last_first.callback(self.process.stop)

    def _config(self) -> dict[str, Any]:
        (port,) = free_ports(1)
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": self._address or "127.0.0.1",
            "port": port,
            "readOnlyPort": 0,
            "featureGates": self._gates,
            "healthzPort": 0,
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": str(self._authority)},
            },
            "authorization": {"mode": "Webhook"},
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": self.cgroup.path,
            "enforceNodeAllocatable": [],
            "failCgroupV1": False,
            "failSwapOn": False,
            "makeIPTablesUtilChains": False,
            "resolvConf": "",
            "containerRuntimeEndpoint": f"unix://{self.containerd.socket}",
            "podLogsDir": str(self.pod_logs),
            "volumePluginDir": str(self._root / "volume-plugins"),
            # A full disk of the developer's machine is none of our business.
            "evictionHard": {"memory.available": "1Mi"},
            "imageGCHighThresholdPercent": 100,
            # The default minute is also what a failed NodePrepareResources waits for its retry.
            "syncFrequency": "5s",
        }
