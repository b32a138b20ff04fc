"""The half of a check that only reads: NVML, the host, kubelet, other managers, the cluster."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from msgspec import structs

from kubeletplugin.check.gpus import read_gpus, read_versions
from kubeletplugin.check.host import examine_driver, examine_process, examine_runtime, with_minors
from kubeletplugin.check.report import Gpu, Item, Notebook, Report
from kubeletplugin.check.surroundings import (
    examine_cluster,
    examine_kubelet,
    examine_other_managers,
)
from kubeletplugin.host.driverfiles import DriverSearch
from kubeletplugin.host.driverversions import explain
from kubeletplugin.host.processes import openers
from kubeletplugin.host.roots import Roots
from kubeletplugin.nvml.errors import NvmlError, enable_mig, reset
from kubeletplugin.nvml.session import Session


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
