"""A whole kubelet stand-in: the Node that it registers, and registration, claims and pods of it."""

from __future__ import annotations

import platform
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import click

from dra.common.resources import NODES, Obj
from dra.kube.client import KubeApi
from dra.kube.errors import AlreadyExistsError
from dra.kube.timing import rfc3339
from sim.daemon import configure_logging, run_until_signal
from sim.kubelet.claims import ClaimManager
from sim.kubelet.containers import LogServer
from sim.kubelet.plugins import PluginRegistry, RegistrationLoop
from sim.kubelet.podresources import PodResourcesServer
from sim.kubelet.pods import PodRunner, Retries

VERSION = "v1.36.2+sim"
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def register_node(api: KubeApi, name: str, now: datetime, *, port: int) -> Obj:
    """Creates the Node, or sets labels and status of the one that exists.

    ``port`` is where this kubelet serves logs.
    """
    machine = platform.machine()
    labels = {
        "kubernetes.io/hostname": name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": _ARCHITECTURES.get(machine, machine),
    }
    body = {
        "apiVersion": NODES.api_version,
        "kind": NODES.kind,
        "metadata": {"name": name, "labels": labels},
    }
    try:
        api.create(NODES, body)
    except AlreadyExistsError:
        api.patch(NODES, name, {"metadata": {"labels": labels}})
    return api.patch(NODES, name, {"status": _status(name, now, port)}, subresource="status")


def _status(name: str, now: datetime, port: int) -> Obj:
    resources = {"cpu": "8", "memory": "32Gi", "pods": "110"}
    at = rfc3339(now)
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
    return {
        "capacity": resources,
        "allocatable": resources,
        "addresses": [
            {"type": "InternalIP", "address": "127.0.0.1"},
            {"type": "Hostname", "address": name},
        ],
        "conditions": [ready | {"lastTransitionTime": at, "lastHeartbeatTime": at}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
        "nodeInfo": {
            "architecture": _ARCHITECTURES.get(platform.machine(), platform.machine()),
            "containerRuntimeVersion": "simulated://1",
            "kernelVersion": platform.release(),
            "kubeletVersion": VERSION,
            "operatingSystem": "linux",
            "osImage": "simulated node",
        },
    }


@dataclass(frozen=True, slots=True)
class Settings:
    """Places of the node's files (``root`` is /var/lib/kubelet) and how patient kubelet is."""

    root: Path
    cdi_root: Path
    retries: Retries = field(default_factory=Retries)


class Kubelet:
    """Runs until :meth:`stop`. Several may live in one process, each with its own root."""

    def __init__(self, api: KubeApi, node: str, settings: Settings) -> None:
        settings.root.mkdir(parents=True, exist_ok=True)
        (settings.root / "plugins").mkdir(exist_ok=True)
        self._api = api
        self._node = node
        self.plugins = PluginRegistry(settings.root)
        self._registration = RegistrationLoop(settings.root / "plugins_registry", self.plugins)
        self.claims = ClaimManager(api, self.plugins)
        self._pods = PodRunner(
            api,
            node,
            self.claims,
            root=settings.root,
            cdi_root=settings.cdi_root,
            retries=settings.retries,
        )
        self._logs = LogServer(self._pods.log)
        self._resources = PodResourcesServer(settings.root, self._pods.active, self.claims.held)

    def start(self) -> None:
        """Registers the node and begins.

        Raises:
            dra.kube.errors.KubeError: the node could not be registered.
        """
        register_node(self._api, self._node, datetime.now(UTC), port=self._logs.port)
        self._logs.start()
        self._resources.start()
        self._registration.start()
        self._pods.start()

    def stop(self) -> None:
        """Stops as kubelet does: the node, its pods and prepared claims stay as they are."""
        self._logs.stop()
        self._resources.stop()
        self._pods.stop()
        self._registration.stop()
        self.plugins.close()


@click.command()
@click.option("--node-name", required=True)
@click.option("--kubeconfig", type=click.Path(exists=True, dir_okay=False))
@click.option("--kubelet-root", type=click.Path(path_type=Path), required=True)
@click.option("--cdi-root", type=click.Path(path_type=Path), required=True)
@click.option(
    "--retry-seconds",
    default=60.0,
    show_default=True,
    help="Pause after a failed NodePrepareResources; up to a half is added.",
)
@click.option("--log-level", default="info", show_default=True)
def main(  # noqa: PLR0913 - one parameter per option
    *,
    node_name: str,
    kubeconfig: str | None,
    kubelet_root: Path,
    cdi_root: Path,
    retry_seconds: float,
    log_level: str,
) -> None:
    """Stand in for kubelet and the container runtime of one node."""
    configure_logging(log_level)
    settings = Settings(
        root=kubelet_root.absolute(),
        cdi_root=cdi_root.absolute(),
        retries=Retries(prepare=retry_seconds),
    )
    api = KubeApi.connect(kubeconfig, user_agent="kubelet-stand-in")
    run_until_signal(Kubelet(api, node_name, settings))
