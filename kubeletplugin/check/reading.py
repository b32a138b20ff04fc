"""The half of a check that only reads: NVML, the host, kubelet, other managers, the cluster."""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import yaml
from msgspec import structs

from dra.common.handbook import page
from dra.common.resources import MIG_NODES, RESOURCE_CLAIMS
from dra.kube.client import KubeApi
from dra.kube.errors import KubeConfigError, KubeError, ObjectNotFoundError
from dra.kube.kubeconfig import SERVICE_ACCOUNT
from kubeletplugin import times
from kubeletplugin.check.gpus import read_gpus, read_versions
from kubeletplugin.check.host import examine_driver, examine_process, examine_runtime, with_minors
from kubeletplugin.check.report import Gpu, Item, Notebook, Report
from kubeletplugin.gpus.driverlibrary import explain
from kubeletplugin.host.driverfiles import DriverSearch
from kubeletplugin.host.processes import named_processes, open_nodes, openers
from kubeletplugin.host.roots import Roots
from kubeletplugin.nvml.errors import NvmlError, enable_mig, reset
from kubeletplugin.nvml.session import Session
from kubeletplugin.sockets import connect

_GATES = ("DynamicResourceAllocation", "ResourceHealthStatus")
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


def read(  # noqa: PLR0913 - where to look
    session: Session,
    roots: Roots,
    *,
    search: DriverSearch,
    driver: str,
    kubeconfig: str | None,
    taken: str,
    node: str = "",
) -> Report:
    """Look at everything; the session is opened if it can be, and stays open."""
    notebook = Notebook()
    gpus = tuple(
        structs.replace(g, open_in=openers(roots, g.minor)) if g.minor >= 0 else g
        for g in with_minors(roots, _nvml(notebook, session, roots))
    )
    versions = read_versions(session, roots)
    if versions.kernel_module:
        notebook.ok(Item.KERNEL_MODULE, f"nvidia {versions.kernel_module} is loaded")
    else:
        notebook.missing(
            Item.KERNEL_MODULE,
            f"no {roots.on_host('/proc/driver/nvidia/version')}: no kernel module is loaded",
            "install NVIDIA's driver and load it (modprobe nvidia)",
        )
    examine_process(notebook, proc=roots.on_host("/proc"))
    if gpus:
        _modes(notebook, gpus)
        _profiles(notebook, gpus)
    examine_driver(
        notebook,
        roots,
        search=search,
        driver_version=versions.driver or versions.kernel_module,
        gpus=gpus,
    )
    examine_runtime(notebook, roots)
    examine_kubelet(notebook, roots, driver=driver)
    examine_other_managers(notebook, roots)
    examine_cluster(notebook, kubeconfig)
    return Report(
        taken=taken,
        node=node,
        findings=tuple(notebook.findings),
        versions=versions,
        gpus=gpus,
        facts=notebook.facts,
    )


def _nvml(notebook: Notebook, session: Session, roots: Roots) -> tuple[Gpu, ...]:
    try:
        session.open()
        gpus = read_gpus(session)
    except NvmlError as error:
        what, _, remedy = explain(error, roots).partition("): ")
        notebook.missing(Item.NVML, f"{what})" if remedy else what, remedy or "see dmesg")
        return ()
    if gpus:
        notebook.ok(Item.NVML, f"driver {session.driver_version()}; GPUs: {len(gpus)}")
    else:
        notebook.missing(Item.NVML, "NVML counts no GPU", "see lspci -d 10de: and dmesg")
    return gpus


def _modes(notebook: Notebook, gpus: Sequence[Gpu]) -> None:
    item = Item.GPUS
    for gpu in gpus:
        if gpu.lost:
            name = gpu.uuid or f"the GPU with index {gpu.index}"
            notebook.note(item, f"{name} is lost", reset(gpu.uuid or "<uuid>"))
        elif gpu.mig != gpu.mig_pending:
            notebook.note(
                item,
                f"{gpu.uuid}: MIG mode turns {gpu.mig_pending} at the next reset",
                reset(gpu.uuid),
            )
        if gpu.unavailable:
            notebook.note(item, f"{gpu.uuid} would be unavailable: {gpu.unavailable}")
        for note in gpu.notes:
            notebook.note(item, f"{gpu.uuid}: {note}")
    for words, count in Counter(filter(None, map(_said, gpus))).items():
        notebook.ok(item, f"{count} x {words}")
    in_mode = [g for g in gpus if g.mig == g.mig_pending == "on" and not g.lost]
    usable = [g for g in in_mode if not g.unavailable]
    capable = [g for g in gpus if g.mig != "none"]
    if usable:
        notebook.ok(item, f"{len(usable)} of {len(gpus)} GPUs are in MIG mode")
    elif in_mode:
        notebook.missing(
            item,
            f"none of {len(in_mode)} GPUs in MIG mode would be given out",
            "do what is said of each of them",
        )
    elif capable:
        first = capable[0]
        needs = "a reset of the GPU follows" if first.mode_needs_reset else "no reset is needed"
        notebook.missing(
            item,
            f"MIG mode is on on none of {len(gpus)} GPUs",
            f"with the GPU idle, {enable_mig(first.uuid)} ({needs})"
            + ("" if first.mode_needs_reset else ", or start the plugin with --enable-mig"),
        )
    else:
        names = ", ".join(sorted({g.product or "unknown" for g in gpus}))
        notebook.missing(item, f"no GPU can do MIG: {names}", "use A30, A100, H100 or newer")


def _said(gpu: Gpu) -> str:
    """The driver's word on a GPU, and the programs that have it open."""
    words = {
        "recovery action": gpu.recovery_action,
        "fabric": gpu.fabric,
        "compute mode": gpu.compute_mode,
        "open in": ", ".join(gpu.open_in),
    }
    return ", ".join(f"{what} {word}" for what, word in words.items() if word)


def _profiles(notebook: Notebook, gpus: Sequence[Gpu]) -> None:
    alike = Counter((g.product, _offer(g)) for g in gpus if g.mig != "none" and not g.lost)
    for (product, offer), count in alike.items():
        if offer:
            notebook.ok(Item.PROFILES, f"{count} x {product}: {offer}")
        else:
            notebook.note(Item.PROFILES, f"{count} x {product}: NVML tells no profiles")


def _offer(gpu: Gpu) -> str:
    return ", ".join(f"{p.name} x{len(p.placements)}" for p in gpu.profiles)


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
    sockets = {
        p.name: connect(p) is None for p in sorted(roots.registry.iterdir()) if _is_socket(p)
    }
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
            timeout_seconds=times.API_SECONDS / 2,
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
