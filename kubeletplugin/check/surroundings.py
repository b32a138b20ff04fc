"""Surroundings of the plugin: kubelet, other programs that use the GPUs, the API server."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import yaml

from dra.common.handbook import page
from dra.common.resources import MIG_NODES, RESOURCE_CLAIMS
from dra.kube.client import KubeApi
from dra.kube.errors import KubeConfigError, KubeError, ObjectNotFoundError
from dra.kube.kubeconfig import SERVICE_ACCOUNT
from kubeletplugin.check.report import Item, Notebook
from kubeletplugin.host.processes import named_processes, open_nodes
from kubeletplugin.host.roots import Roots

_CONNECT_SECONDS = 1.0
_GATES = ("DynamicResourceAllocation", "ResourceHealthStatus")


def examine_kubelet(notebook: Notebook, roots: Roots, *, driver: str) -> None:
    """Kubelet's directories, the sockets in them, and its configuration file's gates."""
    item = Item.KUBELET
    gates = _gates(roots.kubelet / "config.yaml")
    notebook.fact(item, *(f"{name}={value}" for name, value in gates.items()))
    off = [name for name, value in gates.items() if name == _GATES[0] and value is False]
    if off:
        notebook.missing(item, f"kubelet has {off[0]}=false", "set it to true, restart kubelet")
        return
    if not roots.registry.is_dir():
        notebook.missing(
            item,
            f"there is no {roots.registry}: no kubelet has run here",
            "start kubelet, or name its directory by --kubelet-root",
        )
        return
    if not os.access(roots.registry, os.W_OK):
        notebook.missing(item, f"{roots.registry} is not writable", "run it as root")
        return
    sockets = {p.name: _listens(p) for p in sorted(roots.registry.iterdir()) if _is_socket(p)}
    words = [f"{name} ({'answers' if alive else 'nobody'})" for name, alive in sockets.items()]
    notebook.fact(item, *words)
    ours = [name for name, alive in sockets.items() if name.startswith(driver) and alive]
    if ours:
        notebook.ok(item, f"this plugin has registered: {', '.join(ours)}")
    else:
        notebook.ok(item, f"{roots.registry} is there; no plugin of {driver} listens now")


def _is_socket(path: Path) -> bool:
    try:
        return stat.S_ISSOCK(path.lstat().st_mode)
    except OSError:
        return False


def _listens(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(_CONNECT_SECONDS)
        try:
            connection.connect(str(path))
        except OSError:
            return False
        return True


def _gates(path: Path) -> dict[str, bool]:
    """The feature gates about devices of kubelet's configuration file."""
    try:
        config = yaml.safe_load(path.read_text())
        found = dict(config.get("featureGates") or {})
    except (OSError, yaml.YAMLError, AttributeError, TypeError, ValueError):
        return {}
    return {
        str(name): bool(value)
        for name, value in found.items()
        if name in _GATES or str(name).startswith("DRA")
    }


_MANAGERS = {
    "nvidia-device-p": "NVIDIA's device plugin",
    "nvidia-mig-mana": "NVIDIA's mig-manager",
    "nvidia-mig-part": "nvidia-mig-parted",
    "gpu-kubelet-plu": "NVIDIA's DRA driver",
}
_OTHERS = {
    "nv-fabricmanage": "fabric manager",
    "nv-hostengine": "DCGM",
    "dcgm-exporter": "dcgm-exporter",
    "nvidia-persiste": "nvidia-persistenced",
    "nvidia-cuda-mps": "MPS",
}
_OF_KUBELET = {
    "device-plugins/nvidia-gpu.sock": "NVIDIA's device plugin",
    "plugins_registry/gpu.nvidia.com-reg.sock": "NVIDIA's DRA driver",
}
_SOCKETS = {
    "/run/nvidia-persistenced/socket": "nvidia-persistenced",
    "/run/nvidia-fabricmanager/socket": "fabric manager",
    "/tmp/nvidia-mps": "MPS",  # noqa: S108 - where it is by default
}
_MANAGING = frozenset(_MANAGERS.values())


def examine_other_managers(notebook: Notebook, roots: Roots) -> None:
    """Other managers of the GPUs, and processes that hold device nodes of NVIDIA's."""
    names = _MANAGERS | _OTHERS
    processes = dict(named_processes(roots.on_host("/proc")))
    running = sorted({names[name] for name in processes.values() if name in names})
    sockets = sorted({who for path, who in _places(roots) if path.exists()})
    holders = sorted(set(_holders(roots.on_host("/proc"), processes)))
    notebook.fact(
        Item.OTHER_MANAGERS,
        f"processes: {', '.join(running) or 'none'}",
        f"sockets: {', '.join(sockets) or 'none'}",
        f"holders of /dev/nvidia*: {', '.join(holders) or 'none that can be seen'}",
    )
    managers = sorted(_MANAGING & {*running, *sockets})
    if managers:
        notebook.note(
            Item.OTHER_MANAGERS,
            f"{', '.join(managers)} may manage the same GPUs",
            f"keep it off this node, or off these GPUs: {page('migration.md')}",
        )
    else:
        found = ", ".join(sorted({*running, *sockets}))
        notebook.ok(Item.OTHER_MANAGERS, f"nobody else manages GPUs here{found and f'; {found}'}")


def _places(roots: Roots) -> Iterator[tuple[Path, str]]:
    """Sockets and whose they are; a container may see less of kubelet's directory itself."""
    for name, who in _OF_KUBELET.items():
        yield roots.kubelet / name, who
        yield roots.on_host(str(roots.kubelet / name)), who
    for path, who in _SOCKETS.items():
        yield roots.on_host(path), who


def _holders(proc: Path, processes: dict[str, str]) -> Iterator[str]:
    for pid, name in processes.items():
        if open_nodes(proc, pid):
            yield f"{name} ({pid})"


_SECONDS = 5.0


def examine_cluster(
    notebook: Notebook, kubeconfig: str | None, *, service_account: Path = SERVICE_ACCOUNT
) -> None:
    """Ask the API server, if there is a configuration for one."""
    item = Item.CLUSTER
    named = kubeconfig or os.environ.get("KUBECONFIG")
    if not named and not (service_account / "token").is_file():
        notebook.note(item, "not asked: no kubeconfig and no service account", "--kubeconfig FILE")
        return
    try:
        api = KubeApi.connect(
            kubeconfig,
            user_agent="kubeletplugin-check",
            timeout_seconds=_SECONDS,
            service_account=service_account,
        )
    except KubeConfigError as error:
        notebook.note(item, f"not asked: {error}")
        return
    try:
        _ask(notebook, api)
    except KubeError as error:
        notebook.note(item, f"the API server does not answer: {error}")
    finally:
        api.close()


def _ask(notebook: Notebook, api: KubeApi) -> None:
    item = Item.CLUSTER
    version = api.read("/version").get("gitVersion", "unknown version")
    served = {group: _versions(api, group) for group in (RESOURCE_CLAIMS.group, MIG_NODES.group)}
    words = [f"{group}: {', '.join(found) or 'not served'}" for group, found in served.items()]
    notebook.fact(item, f"version {version}", *words)
    if RESOURCE_CLAIMS.version not in served[RESOURCE_CLAIMS.group]:
        wanted = f"{RESOURCE_CLAIMS.group}/{RESOURCE_CLAIMS.version}"
        notebook.missing(
            item, f"{version} does not serve {wanted}", "upgrade Kubernetes to 1.34 or newer"
        )
    elif not served[MIG_NODES.group]:
        notebook.missing(
            item, f"{version} does not serve {MIG_NODES.group}", "install the chart, with its CRD"
        )
    else:
        notebook.ok(item, f"{version} serves {' and '.join(words)}")


def _versions(api: KubeApi, group: str) -> tuple[str, ...]:
    try:
        return tuple(str(v["version"]) for v in api.read(f"/apis/{group}")["versions"])
    except ObjectNotFoundError:
        return ()
