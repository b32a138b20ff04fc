"""The half of a check that only reads: NVML, the host's files, kubelet, neighbours, the cluster."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from kubeletplugin.check.items import Item
from kubeletplugin.check.looking import cluster, host, kubelets, neighbours, process, runtimes
from kubeletplugin.check.looking.gpus import found_by_uuid, read_gpus
from kubeletplugin.check.looking.nvmlfile import read_versions
from kubeletplugin.check.notebook import Notebook
from kubeletplugin.check.report import Belief, Gpu, Report
from kubeletplugin.check.trying.tools import Tools
from kubeletplugin.host.driver.driverversions import explain
from kubeletplugin.host.driversearch import DriverSearch
from kubeletplugin.host.roots import Roots
from kubeletplugin.nvml.errors import NvmlError
from kubeletplugin.nvml.remedies import enable_mig, reset
from kubeletplugin.nvml.session.session import Session


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
    gpus = host.with_minors(roots, _nvml(notebook, session, roots))
    versions = read_versions(session, roots)
    if versions.kernel_module:
        notebook.ok(Item.KERNEL_MODULE, f"nvidia {versions.kernel_module} is loaded")
    else:
        notebook.missing(
            Item.KERNEL_MODULE,
            f"no {roots.on_host('/proc/driver/nvidia/version')}: no kernel module is loaded",
            "install NVIDIA's driver and load it (modprobe nvidia)",
        )
    process.examine(notebook, proc=roots.on_host("/proc"))
    beliefs: tuple[Belief, ...] = ()
    if gpus:
        _modes(notebook, gpus)
        _profiles(notebook, gpus)
        beliefs = _lookup(session, gpus)
    host.examine(
        notebook,
        roots,
        search=search,
        driver_version=versions.driver or versions.kernel_module,
        gpus=gpus,
    )
    runtimes.examine(notebook, roots)
    kubelets.examine(notebook, roots, driver=driver)
    neighbours.examine(notebook, roots)
    cluster.examine(notebook, kubeconfig)
    return Report(
        taken=taken,
        node=node,
        findings=tuple(notebook.findings),
        versions=versions,
        gpus=gpus,
        facts=notebook.facts,
        beliefs=beliefs,
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
    usable = [g for g in gpus if g.mig == g.mig_pending == "on" and not g.lost]
    capable = [g for g in gpus if g.mig != "none"]
    if usable:
        notebook.ok(item, f"{len(usable)} of {len(gpus)} GPUs are in MIG mode")
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


def _profiles(notebook: Notebook, gpus: Sequence[Gpu]) -> None:
    alike = Counter((g.product, _offer(g)) for g in gpus if g.mig != "none" and not g.lost)
    for (product, offer), count in alike.items():
        if offer:
            notebook.ok(Item.PROFILES, f"{count} x {product}: {offer}")
        else:
            notebook.note(Item.PROFILES, f"{count} x {product}: NVML tells no profiles")


def _offer(gpu: Gpu) -> str:
    return ", ".join(f"{p.name} x{len(p.placements)}" for p in gpu.profiles)


def _lookup(session: Session, gpus: Sequence[Gpu]) -> tuple[Belief, ...]:
    """Answer whether a look-up by UUID fails while any GPU is lost: told only where one is."""
    healthy = next((g for g in gpus if not g.lost), None)
    if healthy is None or all(not g.lost for g in gpus):
        return ()
    code = found_by_uuid(session, healthy.uuid)
    answers: dict[str, str] = {"SUCCESS": "own", "GPU_IS_LOST": "any"}
    detail = f"a GPU is lost, and looking up {healthy.uuid}, which is not: {code}"
    return (Belief(item=Item.LOOKUP_BY_UUID, answer=answers.get(code, "open"), detail=detail),)


def attached(gpus: Sequence[Gpu], tools: Tools) -> tuple[Belief, ...]:
    """GPUs that one GPU's handle keeps open: told where there are several."""
    if len(gpus) < 2:  # noqa: PLR2004 - one GPU cannot tell
        return ()
    answer, _, why = tools.attach().partition(": ")
    detail = why or "GPUs whose device files are open with the handle of one"
    return (Belief(item=Item.ATTACH, answer=answer, detail=detail),)
