"""The cluster as a whole: its programs as processes, its nodes, and what is asked of it."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import click
import yaml

from api.crds import mignode_definition
from api.errors import InvalidObjectError
from dra.common.resources import (
    CUSTOM_RESOURCE_DEFINITIONS,
    DEVICE_CLASSES,
    MIG_NODES,
    NODES,
)
from dra.gpu.inventory import Inventory
from dra.gpu.mignode import from_mignode
from dra.gpu.names import DEFAULT_DRIVER, class_name
from dra.kube.client import KubeApi
from dra.kube.errors import AlreadyExistsError, KubeError
from sim.daemon import configure_logging, run_until_signal
from sim.kcm import ClaimController
from sim.kubelet.plugins import is_registered
from sim.nvml.machine import GpuSpec, Machine
from sim.nvml.products import ContentError, Product, load_product
from sim.processes import ClusterError, Supervisor
from sim.scheduler import Scheduler
from sim.workloads.controller import WorkloadController


@click.command()
@click.option("--kubeconfig", type=click.Path(exists=True, dir_okay=False))
@click.option("--log-level", default="info", show_default=True)
def main(kubeconfig: str | None, log_level: str) -> None:
    """Stand in for kube-controller-manager and kube-scheduler."""
    configure_logging(log_level)
    run_until_signal(
        ClaimController(KubeApi.connect(kubeconfig, user_agent="kcm-stand-in")),
        WorkloadController(KubeApi.connect(kubeconfig, user_agent="workloads-stand-in")),
        Scheduler(KubeApi.connect(kubeconfig, user_agent="scheduler-stand-in")),
    )


API_SERVER = "apiserver"
CONTROLLER = "controller"
CONTROL_PLANE = "control-plane"
_NODE_CLASSES = "node-classes"
_API_WAVE = 0
_KUBELET_WAVE = 1
_DAEMON_WAVE = 2
_POLL_SECONDS = 0.05
_START_SECONDS = 180.0


@dataclass(frozen=True, slots=True)
class NodePlace:
    """Directories and files of a node."""

    name: str
    directory: Path

    @property
    def hardware(self) -> Path:
        """The simulated machine's state."""
        return self.directory / "hardware"

    @property
    def host(self) -> Path:
        """The simulated machine's ``/``."""
        return self.directory / "host"

    @property
    def kubelet(self) -> Path:
        """Stands for /var/lib/kubelet."""
        return self.directory / "kubelet"

    @property
    def cdi(self) -> Path:
        """Stands for /var/run/cdi."""
        return self.directory / "cdi"

    @property
    def machine(self) -> Machine:
        """The simulated hardware, seen from outside."""
        return Machine(self.hardware)


@dataclass(frozen=True, slots=True)
class ClusterShape:
    """Number of nodes, and the GPUs of each (products of ``python -m sim nvml products``)."""

    nodes: int = 2
    gpus: tuple[str, ...] = ("A100-SXM4-40GB", "A100-SXM4-40GB")
    prepare_retry_seconds: float = 60.0


class Cluster:
    """A running cluster; made by :func:`running_cluster`."""

    def __init__(self, shape: ClusterShape, supervisor: Supervisor, api: KubeApi) -> None:
        self.shape = shape
        self.supervisor = supervisor
        self.api = api
        self.places = places(shape, supervisor.directory)

    @property
    def kubeconfig(self) -> Path:
        """Path of the kubeconfig for kubectl and other clients."""
        return self.supervisor.directory / "kubeconfig"

    def inventories(self) -> list[Inventory]:
        """The GPUs of all nodes as their MigNode objects show them, sorted by node."""
        objects = self.api.list(MIG_NODES).items
        return sorted((from_mignode(obj) for obj in objects), key=lambda i: i.node)

    def unready(self) -> str:
        """Text about missing parts; "" when pods can get slices."""
        names = [place.name for place in self.places]
        nodes = {obj["metadata"]["name"] for obj in self.api.list(NODES).items}
        if missing := [name for name in names if name not in nodes]:
            return f"no Node {', '.join(missing)}"
        if missing := [p.name for p in self.places if not is_registered(p.kubelet, DEFAULT_DRIVER)]:
            return f"no plugin is registered on {', '.join(missing)}"
        try:
            ready = {inventory.node for inventory in self.inventories() if inventory.ready}
        except (InvalidObjectError, ValueError) as error:
            return f"a MigNode cannot be read: {error}"
        if missing := [name for name in names if name not in ready]:
            return f"MigNode {', '.join(missing)} is not Ready"
        classes = self.api.list(DEVICE_CLASSES).items
        if not any(re.match(r"mig-\d", obj["metadata"]["name"]) for obj in classes):
            return "no DeviceClass per profile"
        return ""


@contextmanager
def running_cluster(
    shape: ClusterShape,
    *,
    directory: Path | None = None,
    kubeconfig: Path | None = None,
    ends: Callable[[], bool] = lambda: False,
) -> Iterator[Cluster]:
    """Starts a cluster, waits until it is ready, and ends it on exit.

    ``ends`` says that somebody wants it to end, which is looked at in all waits.

    Raises:
        EndedError: somebody does.
        ClusterError: it does not become ready, or a process ended, or a product or path cannot be
            used; says which.
    """
    if not shape.gpus:
        raise ClusterError("a node needs at least one GPU")
    for gpu in dict.fromkeys(shape.gpus):
        read_product(gpu)
    with Supervisor(directory, ends=ends) as supervisor:
        path = supervisor.directory / "kubeconfig"
        path.unlink(missing_ok=True)
        arguments = ["-m", "sim", "apiserver", "--port", "0", "--kubeconfig-out", str(path)]
        supervisor.spawn(API_SERVER, arguments, wave=_API_WAVE)
        for place in places(shape, supervisor.directory):
            _build_machine(place, shape)
        write_layouts(supervisor.directory / _NODE_CLASSES, read_product(shape.gpus[0]))
        wait_until(supervisor, "the API server", lambda: "" if path.exists() else "no kubeconfig")
        if kubeconfig is not None:
            _copy(path, kubeconfig)
        api = KubeApi.connect(str(path), user_agent="sim-cluster")
        cluster = Cluster(shape, supervisor, api)
        try:
            _install(api)
            _spawn(cluster)
            wait_until(supervisor, "the cluster", cluster.unready)
            yield cluster
        except KubeError as error:
            supervisor.check()
            raise ClusterError(f"the API server refused: {error}") from error
        finally:
            api.close()


def places(shape: ClusterShape, directory: Path) -> list[NodePlace]:
    """``node-1``, ``node-2``, ... below the directory."""
    names = [f"node-{number}" for number in range(1, shape.nodes + 1)]
    return [NodePlace(name, directory / name) for name in names]


def wait_until(
    supervisor: Supervisor,
    what: str,
    missing: Callable[[], str],
    *,
    seconds: float = _START_SECONDS,
) -> None:
    """Polls until ``missing`` returns "".

    Raises:
        EndedError: somebody wants an end.
        ClusterError: a process ended, or time is up; says what was missing last.
    """
    deadline = time.monotonic() + seconds
    supervisor.check_ended()
    while reason := missing():
        supervisor.check()
        if time.monotonic() > deadline:
            logs = "\n".join(child.tail(lines=5) for child in supervisor.children.values())
            raise ClusterError(f"waited {seconds:.0f} s for {what}: {reason}\n{logs}")
        time.sleep(_POLL_SECONDS)


def _copy(kubeconfig: Path, to: Path) -> None:
    try:
        to.write_text(kubeconfig.read_text())
    except OSError as error:
        raise ClusterError(f"{to} cannot be written: {error.strerror}") from error


def read_product(name: str) -> Product:
    """A bundled product by its name, or one of a JSON file by the file's.

    Raises:
        ClusterError: there is none, or its file is not one of a product, or it has no MIG.
    """
    try:
        product = load_product(Path(name) if name.endswith(".json") else name)
    except (LookupError, OSError) as error:
        raise ClusterError(str(error)) from error
    except ContentError as error:
        raise ClusterError(f"{error}. Take one of sim/nvml/fixtures as pattern.") from error
    if not product.gi_profiles:
        raise ClusterError(f"{name} has no MIG profiles: there is nothing to cut")
    return product


def _build_machine(place: NodePlace, shape: ClusterShape) -> None:
    wanted = [read_product(gpu).product for gpu in shape.gpus]
    place.directory.mkdir(exist_ok=True)
    if place.hardware.exists():
        found = [gpu.product for gpu in place.machine.state().gpus]
        if found != wanted:
            raise ClusterError(
                f"{place.directory} has {', '.join(found)} from an earlier run, and you want "
                f"{', '.join(wanted)}. Remove {place.directory.parent}, or choose another "
                "directory with --dir."
            )
        return
    specs = [GpuSpec(Path(gpu) if gpu.endswith(".json") else gpu, mig=True) for gpu in shape.gpus]
    Machine.create(place.hardware, specs, host_root=place.host)


def _install(api: KubeApi) -> None:
    """Installs, as an administrator does, the custom resource."""
    with suppress(AlreadyExistsError):
        api.create(CUSTOM_RESOURCE_DEFINITIONS, mignode_definition())


def _spawn(cluster: Cluster) -> None:
    supervisor, config = cluster.supervisor, ["--kubeconfig", str(cluster.kubeconfig)]
    classes = ["--node-classes", str(supervisor.directory / _NODE_CLASSES)]
    for place in cluster.places:
        roots = ["--kubelet-root", str(place.kubelet), "--cdi-root", str(place.cdi)]
        node = ["--node-name", place.name, *config, *roots]
        plugin = ["-m", "sim", "plugin", "--hardware", str(place.hardware), "--"]
        retry = ["--retry-seconds", str(cluster.shape.prepare_retry_seconds)]
        supervisor.spawn(
            f"plugin-{place.name}",
            [
                *[*plugin, *node, *classes],
                *["--host-root", str(place.host), "--driver-root", str(place.host)],
            ],
            wave=_DAEMON_WAVE,
        )
        supervisor.spawn(
            f"kubelet-{place.name}", ["-m", "sim", "kubelet", *node, *retry], wave=_KUBELET_WAVE
        )
    arguments = ["-m", "controller", *config, "--driver-name", DEFAULT_DRIVER]
    supervisor.spawn(CONTROLLER, arguments, wave=_DAEMON_WAVE)
    supervisor.spawn(CONTROL_PLANE, ["-m", "sim", "control-plane", *config], wave=_KUBELET_WAVE)


def write_whole(folder: Path, product: Product, *, gpus: int) -> tuple[Path, str]:
    """Writes pods for a whole GPU each, one more than there are; returns file and last pod."""
    pod, template = (files("sim.cluster") / "manifests/whole.yaml").read_text().split("---\n")
    names = [f"whole-{number}" for number in range(1, gpus + 2)]
    documents = [template.replace("CLASS", class_name(product.whole.name))]
    documents += [pod.replace("NAME", name) for name in names]
    folder.mkdir(exist_ok=True)
    path = folder / "whole.yaml"
    path.write_text("---\n".join(documents))
    return path, names[-1]


def write_layouts(folder: Path, product: Product) -> Path:
    """Writes layouts for the product as mig-parted generates them; returns the file.

    ``all-<profile>`` has as many slices of a plain profile as fit.
    """
    layouts = {
        f"all-{p.name}": [{"devices": "all", "mig-enabled": True, "mig-devices": {p.name: count}}]
        for p in product.gi_profiles
        if "+" not in p.name and "-" not in p.name and (count := _most(p.starts, p.size))
    }
    folder.mkdir(exist_ok=True)
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump({"version": "v1", "mig-configs": layouts}, sort_keys=False))
    return path


def _most(starts: Iterable[int], size: int) -> int:
    """Number of placements that lie beside each other."""
    count = end = 0
    for start in sorted(starts):
        if start >= end:
            count, end = count + 1, start + size
    return count
