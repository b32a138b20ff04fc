"""The part of a check that only reads: NVML, the host, other managers."""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import fields
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import msgspec

from dra.common.program import page
from dra.gpu.inventory import GpuHealth
from kubeletplugin.check.host import examine_cdi, examine_driver, examine_process
from kubeletplugin.check.report import Gpu, Instance, Item, Notebook, Report
from kubeletplugin.gpus.driverlibrary import explain, installed, kernel_module, mapped_library
from kubeletplugin.host.driverfiles import DriverSearch
from kubeletplugin.host.processes import named_processes, open_nodes, openers
from kubeletplugin.host.roots import Roots
from kubeletplugin.nvml.condition import health
from kubeletplugin.nvml.errors import NvmlError, at_hand, enable_mig
from kubeletplugin.nvml.gpus import Card, Discovery, discover, read_geometry
from kubeletplugin.nvml.instances import list_compute_instances, list_gpu_instances
from kubeletplugin.nvml.session import Session
from kubeletplugin.options import Options

_MANAGERS = {
    "nvidia-device-p": "NVIDIA's device plugin",
    "nvidia-mig-mana": "NVIDIA's mig-manager",
    "nvidia-mig-part": "nvidia-mig-parted",
    "gpu-kubelet-plu": "NVIDIA's DRA driver",
}
_OF_KUBELET = {
    "device-plugins/nvidia-gpu.sock": "NVIDIA's device plugin",
    "plugins_registry/gpu.nvidia.com-reg.sock": "NVIDIA's DRA driver",
}


def read(session: Session, options: Options, *, taken: str) -> Report:
    """Make the report, all but trials and times; ``taken``: date and time for the report.

    The session is opened if possible, and stays open.
    """
    notebook, roots = Notebook(), options.roots
    found = _nvml(notebook, session, roots)
    kernel = kernel_module(roots)
    if kernel:
        notebook.ok(Item.KERNEL_MODULE, f"nvidia {kernel} is loaded")
    else:
        notebook.missing(
            Item.KERNEL_MODULE,
            f"no {roots.on_host('/proc/driver/nvidia/version')}: no kernel module is loaded",
            "install NVIDIA's driver and load it (modprobe nvidia)",
        )
    examine_process(notebook, proc=roots.on_host("/proc"))
    cards = found.cards if found else ()
    gpus = tuple(_gpu(session, roots, card) for card in cards)
    if cards:
        _modes(notebook, cards, gpus)
        _profiles(notebook, session, cards)
    examine_driver(
        notebook,
        roots,
        search=DriverSearch(
            roots,
            directories=options.library_directories,
            programs=options.program_directories,
            hook=options.cdi_hook,
        ),
        driver_version=found.driver_version if found else kernel,
        minors=[card.minor for card in cards],
    )
    examine_cdi(notebook, roots)
    _other_managers(notebook, roots)
    return Report(
        taken=taken,
        node=options.node_name,
        findings=tuple(notebook.findings),
        versions=_versions(roots, found),
        gpus=gpus,
        facts=notebook.facts,
    )


def _nvml(notebook: Notebook, session: Session, roots: Roots) -> Discovery | None:
    try:
        session.open()
        found = discover(session)
    except NvmlError as error:
        what, _, remedy = explain(error, roots).partition("): ")
        notebook.missing(Item.NVML, f"{what})" if remedy else what, remedy or "see dmesg")
        return None
    for problem in found.problems:
        notebook.note(Item.GPUS, f"a GPU is left out: {problem}")
    if found.cards:
        notebook.ok(Item.NVML, f"driver {found.driver_version}; GPUs: {len(found.cards)}")
    else:
        notebook.missing(Item.NVML, "NVML counts no GPU", "see lspci -d 10de: and dmesg")
    return found


def _versions(roots: Roots, found: Discovery | None) -> dict[str, str]:
    """Versions of software, by the place that tells them; empty if it tells none.

    ``mapped``: NVML's library in this process. ``onDisk``: installed NVML libraries.
    """
    mapped = mapped_library()
    try:
        bindings = version("nvidia-ml-py")
    except PackageNotFoundError:
        bindings = ""
    return {
        "kernelModule": kernel_module(roots),
        "driver": found.driver_version if found else "",
        "cuda": found.cuda_version if found else "",
        "mapped": f"{mapped.path}: {mapped}" if mapped else "",
        "onDisk": ", ".join(installed(roots)),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "bindings": bindings,
    }


def _gpu(session: Session, roots: Roots, card: Card) -> Gpu:
    """A GPU with its instances; if they cannot be read, the GPU is unavailable for that reason."""
    name = f"gpu-{card.minor}"
    _, problem = card.trouble(name)
    instances: tuple[Instance, ...] = ()
    try:
        if card.geometry is not None:
            instances = tuple(
                Instance(
                    id=gi.id,
                    profile_id=gi.profile_id,
                    start=gi.placement.start,
                    size=gi.placement.size,
                    compute_instances=tuple(
                        (c.id, c.uuid) for c in list_compute_instances(session, card.uuid, gi.id)
                    ),
                )
                for gi in list_gpu_instances(session, card.uuid, card.geometry)
            )
    except NvmlError as error:
        problem = problem or str(error)
    described: dict[str, Any] = {
        f.name: msgspec.to_builtins(getattr(card, f.name))
        for f in fields(card)
        if f.name != "geometry"
    }
    if card.geometry is not None:
        described["profiles"] = msgspec.to_builtins(card.geometry.profiles)
    return Gpu(
        uuid=card.uuid,
        card=described,
        unavailable=at_hand(problem, gpu=name),
        open_in=openers(roots, card.minor),
        instances=instances,
    )


def _modes(notebook: Notebook, cards: Sequence[Card], gpus: Sequence[Gpu]) -> None:
    item = Item.GPUS
    said = {c.uuid: health(c.condition, mig=c.mig_enabled) or GpuHealth() for c in cards}
    words: Counter[str] = Counter()
    for gpu in gpus:
        if gpu.unavailable:
            notebook.note(item, f"{gpu.uuid} would be unavailable: {gpu.unavailable}")
        one = said[gpu.uuid]
        for note in one.notes:
            notebook.note(item, f"{gpu.uuid}: {note}")
        told = {
            "recovery action": one.recovery,
            "fabric": one.fabric,
            "compute mode": one.compute_mode,
            "open in": ", ".join(gpu.open_in),
        }
        words[", ".join(f"{what} {word}" for what, word in told.items() if word)] += 1
    for text, count in words.items():
        if text:
            notebook.ok(item, f"{count} x {text}")
    in_mode = [g for c, g in zip(cards, gpus, strict=True) if c.mig_enabled and c.mig_pending]
    usable = [g for g in in_mode if not g.unavailable]
    capable = [c for c in cards if c.mig_capable]
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
        needs = "no reset is needed" if first.switches_mig else "a reset of the GPU follows"
        notebook.missing(
            item,
            f"MIG mode is on on none of {len(gpus)} GPUs",
            f"with the GPU idle, {enable_mig(first.uuid)} ({needs})"
            + (", or start the plugin with --enable-mig" if first.switches_mig else ""),
        )
    else:
        names = ", ".join(sorted({c.product_name or "unknown" for c in cards}))
        notebook.missing(item, f"no GPU can do MIG: {names}", "use A30, A100, H100 or newer")


def _profiles(notebook: Notebook, session: Session, cards: Sequence[Card]) -> None:
    alike = Counter((c.product_name, _offer(session, c)) for c in cards if c.mig_capable)
    for (product, offer), count in alike.items():
        if offer:
            notebook.ok(Item.PROFILES, f"{count} x {product}: {offer}")
        else:
            notebook.note(Item.PROFILES, f"{count} x {product}: NVML tells no profiles")


def _offer(session: Session, card: Card) -> str:
    """Profiles of a GPU and the number of their placements, which NVML tells without MIG mode."""
    geometry, gpu = card.geometry, card.uuid
    if geometry is None:
        with suppress(NvmlError):
            geometry = session.as_one(
                lambda: read_geometry(session, session.device(gpu), gpu=gpu), gpu=gpu
            )
    return (
        ", ".join(f"{p.name} x{len(p.placements)}" for p in geometry.profiles) if geometry else ""
    )


def _other_managers(notebook: Notebook, roots: Roots) -> None:
    """Look for other managers of the GPUs, and list processes with NVIDIA's device nodes open."""
    proc = roots.on_host("/proc")
    processes = dict(named_processes(proc))
    running = sorted({_MANAGERS[name] for name in processes.values() if name in _MANAGERS})
    # A container may see less of kubelet's directory by one of its two paths.
    seen = (roots.kubelet, roots.on_host(str(roots.kubelet)))
    sockets = [w for name, w in _OF_KUBELET.items() if any((p / name).exists() for p in seen)]
    holders = sorted(f"{name} ({pid})" for pid, name in processes.items() if open_nodes(proc, pid))
    notebook.fact(
        Item.OTHER_MANAGERS,
        f"processes: {', '.join(running) or 'none'}",
        f"sockets: {', '.join(sockets) or 'none'}",
        f"holders of /dev/nvidia*: {', '.join(holders) or 'none that can be seen'}",
    )
    if managers := sorted({*running, *sockets}):
        notebook.note(
            Item.OTHER_MANAGERS,
            f"{', '.join(managers)} may manage the same GPUs",
            f"keep it off this node, or off these GPUs: {page('migration.md')}",
        )
    else:
        notebook.ok(Item.OTHER_MANAGERS, "nobody else manages GPUs here")
