"""A whole kubelet stand-in: the Node that it registers, and registration, claims and pods of it."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Mapping
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
from sim.kubelet.plugins import WIPING_SECONDS, PluginRegistry, RegistrationLoop, SliceWiper
from sim.kubelet.pods import PodRunner, Retries

VERSION = "v1.36.2+sim"
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


@dataclass(frozen=True, slots=True)
class NodeShape:
    """Resources and marks of the node. Taints are ``{key, value, effect}``."""

    name: str
    cpu: str = "8"
    memory: str = "32Gi"
    pods: str = "110"
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Mapping[str, str], ...] = ()


def parse_taint(text: str) -> dict[str, str]:
    """``key[=value]:effect`` as in ``kubectl taint``.

    Raises:
        ValueError: another form.
    """
    pair, separator, effect = text.rpartition(":")
    key, _, value = pair.partition("=")
    if not separator or not key or effect not in {"NoSchedule", "PreferNoSchedule", "NoExecute"}:
        raise ValueError(f"taint {text!r} is not key[=value]:NoSchedule, :NoExecute, ...")
    return {"key": key, "effect": effect} | ({"value": value} if value else {})


def parse_labels(texts: Iterable[str]) -> dict[str, str]:
    """``key=value`` each.

    Raises:
        ValueError: another form.
    """
    labels = {}
    for text in texts:
        key, separator, value = text.partition("=")
        if not separator or not key:
            raise ValueError(f"label {text!r} is not key=value")
        labels[key] = value
    return labels


def register_node(api: KubeApi, shape: NodeShape, now: datetime, *, port: int) -> Obj:
    """Creates the Node, or sets labels and status of the one that exists; its taints stay.

    ``port`` is where this kubelet serves logs.
    """
    machine = platform.machine()
    labels = {
        "kubernetes.io/hostname": shape.name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": _ARCHITECTURES.get(machine, machine),
        **shape.labels,
    }
    spec = {"taints": [dict(taint) for taint in shape.taints]} if shape.taints else {}
    body = {
        "apiVersion": NODES.api_version,
        "kind": NODES.kind,
        "metadata": {"name": shape.name, "labels": labels},
        "spec": spec,
    }
    try:
        api.create(NODES, body)
    except AlreadyExistsError:
        api.patch(NODES, shape.name, {"metadata": {"labels": labels}})
    return api.patch(NODES, shape.name, {"status": _status(shape, now, port)}, subresource="status")


def _status(shape: NodeShape, now: datetime, port: int) -> Obj:
    resources = {"cpu": shape.cpu, "memory": shape.memory, "pods": shape.pods}
    at = rfc3339(now)
    pressures = ("MemoryPressure", "DiskPressure", "PIDPressure")
    conditions = [
        {"type": kind, "status": "False", "reason": f"KubeletHasNo{kind}"} for kind in pressures
    ]
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
    return {
        "capacity": resources,
        "allocatable": resources,
        "addresses": [
            {"type": "InternalIP", "address": "127.0.0.1"},
            {"type": "Hostname", "address": shape.name},
        ],
        "conditions": [
            condition | {"lastTransitionTime": at, "lastHeartbeatTime": at}
            for condition in (*conditions, ready)
        ],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
        "nodeInfo": {
            "architecture": _ARCHITECTURES.get(platform.machine(), platform.machine()),
            "bootID": "",
            "containerRuntimeVersion": "simulated://1",
            "kernelVersion": platform.release(),
            "kubeProxyVersion": "",
            "kubeletVersion": VERSION,
            "machineID": "",
            "operatingSystem": "linux",
            "osImage": "simulated node",
            "systemUUID": "",
        },
    }


@dataclass(frozen=True, slots=True)
class Settings:
    """Places of the node's files (``root`` is /var/lib/kubelet) and how patient kubelet is."""

    root: Path
    cdi_root: Path
    retries: Retries = field(default_factory=Retries)
    reconcile_seconds: float = 60.0
    wipe_seconds: float = WIPING_SECONDS


class Kubelet:
    """Runs until :meth:`stop`. Several may live in one process, each with its own root."""

    def __init__(self, api: KubeApi, shape: NodeShape, settings: Settings) -> None:
        settings.root.mkdir(parents=True, exist_ok=True)
        (settings.root / "plugins").mkdir(exist_ok=True)
        self._api = api
        self._shape = shape
        self.plugins = PluginRegistry(settings.root)
        self._registration = RegistrationLoop(settings.root / "plugins_registry", self.plugins)
        self._wiper = SliceWiper(api, shape.name, self.plugins, delay=settings.wipe_seconds)
        self.claims = ClaimManager(api, self.plugins, root=settings.root)
        self._pods = PodRunner(
            api,
            shape.name,
            self.claims,
            root=settings.root,
            cdi_root=settings.cdi_root,
            retries=settings.retries,
            reconcile_seconds=settings.reconcile_seconds,
        )
        self._logs = LogServer(self._pods.log)

    def start(self) -> None:
        """Registers the node and begins.

        Raises:
            dra.kube.errors.KubeError: the node could not be registered.
        """
        register_node(self._api, self._shape, datetime.now(UTC), port=self._logs.port)
        self._logs.start()
        self._wiper.start()
        self._registration.start()
        self._pods.start()

    def stop(self) -> None:
        """Stops as kubelet does: the node, its pods and prepared claims stay as they are."""
        self._logs.stop()
        self._pods.stop()
        self._registration.stop()
        self._wiper.stop()
        self.plugins.close()


@click.command()
@click.option("--node-name", required=True)
@click.option("--kubeconfig", type=click.Path(exists=True, dir_okay=False))
@click.option("--kubelet-root", type=click.Path(path_type=Path), required=True)
@click.option("--cdi-root", type=click.Path(path_type=Path), required=True)
@click.option("--cpu", default="8", show_default=True, help="Allocatable cpu.")
@click.option("--memory", default="32Gi", show_default=True, help="Allocatable memory.")
@click.option("--max-pods", default="110", show_default=True, help="Allocatable pods.")
@click.option("--label", multiple=True, metavar="KEY=VALUE", help="Label of the node.")
@click.option("--taint", multiple=True, metavar="KEY[=VALUE]:EFFECT", help="Taint of a new node.")
@click.option(
    "--retry-seconds",
    default=60.0,
    show_default=True,
    help="Pause after a failed NodePrepareResources; up to a half is added.",
)
@click.option(
    "--reconcile-seconds",
    default=60.0,
    show_default=True,
    help="How often claims of force-deleted pods are looked for.",
)
@click.option(
    "--wipe-seconds",
    default=WIPING_SECONDS,
    show_default=True,
    help="How long a plugin may be gone before its ResourceSlices are deleted.",
)
@click.option("--log-level", default="info", show_default=True)
def main(  # noqa: PLR0913, PLR0917 - one parameter per option
    node_name: str,
    kubeconfig: str | None,
    kubelet_root: Path,
    cdi_root: Path,
    cpu: str,
    memory: str,
    max_pods: str,
    label: tuple[str, ...],
    taint: tuple[str, ...],
    retry_seconds: float,
    reconcile_seconds: float,
    wipe_seconds: float,
    log_level: str,
) -> None:
    """Stand in for kubelet and the container runtime of one node."""
    configure_logging(log_level)
    try:
        shape = NodeShape(
            name=node_name,
            cpu=cpu,
            memory=memory,
            pods=max_pods,
            labels=parse_labels(label),
            taints=tuple(parse_taint(text) for text in taint),
        )
    except ValueError as error:
        raise click.BadParameter(str(error)) from error
    settings = Settings(
        root=kubelet_root.absolute(),
        cdi_root=cdi_root.absolute(),
        retries=Retries(prepare=retry_seconds),
        reconcile_seconds=reconcile_seconds,
        wipe_seconds=wipe_seconds,
    )
    api = KubeApi.connect(kubeconfig, user_agent="kubelet-stand-in")
    run_until_signal(Kubelet(api, shape, settings))
