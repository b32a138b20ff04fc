"""CDI specs of claims, and a check of the files that the node needs for them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from cdi.spec import (
    CdiError,
    Device,
    DeviceNode,
    Edits,
    Spec,
    claim_kind,
    device_id,
    joined,
    version,
)
from cdi.store import SpecStore
from dra.claims.reasons import NodeReason
from dra.common.runtimes import refusal
from kubeletplugin.common import Common
from kubeletplugin.errors import HostError, IncompleteError
from kubeletplugin.gpus.gpu import Conflict, GpuUnit
from kubeletplugin.gpus.hardware import Hardware
from kubeletplugin.host.driverfiles import (
    COMPUTE,
    VIDEO,
    DriverFiles,
    DriverSearch,
    DriverSpec,
    Needs,
)
from kubeletplugin.host.nodes import (
    check_capabilities,
    control_nodes,
    drm_nodes,
    gpu_node,
    instance_capabilities,
    make_nodes,
    modeset_node,
    monitor_capability,
    node_edits,
)
from kubeletplugin.host.roots import Roots
from kubeletplugin.journal.entries import Entry, EntryKey

_log = logging.getLogger(__name__)
_GRAPHICS = "gfx"
"""The attribute in the name of a profile whose slices can do graphics: ``1g.24gb+gfx``."""
_NEEDS = "node needs"


@contextmanager
def _host_errors() -> Iterator[None]:
    """Raise HostError in place of CdiError."""
    try:
        yield
    except CdiError as error:
        raise HostError(str(error)) from error


class Specs:
    """Writes and removes claims' CDI specs. Raises HostError, naming the file.

    Edits that all containers need are in the common spec; with a claim, kubelet is told the names
    of the common spec's devices too, and keeps them. ``sharing``: returns, for all entries of a
    claim, the further edits for each device that is shared. ``runtime``: returns the container
    runtime and its version as the Node says, or nothing.
    """

    def __init__(  # noqa: PLR0913 - the node, its files, and who knows the rest
        self,
        driver: str,
        hardware: Hardware,
        *,
        roots: Roots,
        search: DriverSearch,
        sharing: Callable[[Sequence[Entry]], Mapping[EntryKey, Iterable[Edits]]],
        runtime: Callable[[], str],
    ) -> None:
        self._kind = claim_kind(driver)
        self._hardware = hardware
        self._roots = roots
        self._search = search
        self._sharing = sharing
        self._runtime = runtime
        self._store = SpecStore(roots.cdi, driver)
        self._unmade = ""
        self._driver_spec = DriverSpec(driver, self._store, self._needs)

    def qualified(self, entry: Entry) -> tuple[str, ...]:
        """The CDI names of an entry's devices, in the order in which kubelet is to pass them on."""
        unit = self._hardware.unit(entry.gpu)
        has_video = unit is not None and has_engines(entry, unit)
        common = self._driver_spec.qualified((COMPUTE, VIDEO) if has_video else (COMPUTE,))
        return (*common, f"{self._kind}={_device_id(entry)}")

    def write(self, entries: Sequence[Entry], needs: Needs | None = None) -> None:
        """Write the spec of one claim; a spec that is already right is left.

        The common spec is written first. ``entries``: all entries of the claim. ``needs``: the
        result of ``check``; without it the node is looked at again.
        """
        needs = needs or self._needs()
        self._driver_spec.ensure(needs)
        spec = self.build(entries, needs)
        self._check_runtime(version(spec))
        self._make_nodes(spec, needs)
        with _host_errors():
            self._store.write(entries[0].claim.uid, spec)

    def _check_runtime(self, needs: str) -> None:
        """Raise IncompleteError if the runtime would drop specs of CDI version ``needs``."""
        if problem := refusal(self._runtime(), needs=needs):
            raise IncompleteError(problem)

    def _make_nodes(self, spec: Spec, needs: Needs) -> None:
        """Make missing device nodes on the host, which pods with ``hostUsers: false`` need."""
        edits = (needs.control, *(device.edits for device in spec.devices))
        problem = make_nodes(needs.roots, (node for e in edits for node in e.nodes))
        if problem and problem != self._unmade:
            _log.warning("pods with hostUsers: false will not start here: %s", problem)
        self._unmade = problem

    def remove(self, claim_uid: str) -> None:
        """Remove a claim's spec, if there is one."""
        with _host_errors():
            self._store.remove(claim_uid)

    def remove_common(self) -> None:
        """Remove the common spec; to be called only while no claim needs it."""
        self._driver_spec.remove()

    def claims(self) -> frozenset[str]:
        """UIDs of the claims that have a spec."""
        with _host_errors():
            return self._store.claims()

    def sweep(self, keep: set[str]) -> int:
        """Remove half-written specs and those of claims not in ``keep`` (UIDs).

        Returns the number of files removed.
        """
        with _host_errors():
            return len(self._store.sweep(keep))

    def check(self) -> Needs:
        """Check that the node has the files that every container needs; returns these needs.

        Raises:
            IncompleteError: the node lacks something; the message names it, and the remedy.
        """
        needs = self._needs()
        try:
            if any(unit.card.mig_enabled for unit in self._hardware.units()):
                check_capabilities(needs.roots)
        except HostError as error:
            raise IncompleteError(str(error)) from error
        return needs

    def check_writable(self) -> None:
        """Raise HostError if the directory of specs cannot be written to."""
        with _host_errors():
            self._store.check()

    def driver_files(self) -> DriverFiles:
        """The driver's files; another object when the files have changed."""
        return self._search.find(self._hardware.driver_version)

    def build(self, entries: Sequence[Entry], needs: Needs | None = None) -> Spec:
        """The spec of one claim.

        Raises:
            IncompleteError: the node lacks something that every container needs.
            HostError: the node lacks something that a device of this claim needs.
        """
        needs = needs or self._needs()
        is_shared = any(e.share is not None or e.mps is not None for e in entries)
        shared = self._sharing(entries) if is_shared else {}
        return Spec(
            kind=self._kind,
            devices=tuple(
                Device(_device_id(e), self._of_device(e, needs, shared.get(e.key, ())))
                for e in entries
            ),
        )

    def _needs(self) -> Needs:
        """The driver files and device nodes that every container on this node needs now.

        Raises:
            IncompleteError: the node lacks something; the message names it, and the remedy.
        """
        files = self.driver_files()
        try:
            self._search.check(files)
            roots = self._roots.now()
            needs = Needs(files, control_nodes(roots), roots)
        except HostError as error:
            raise IncompleteError(str(error)) from error
        self._check_runtime(version(Spec(self._kind, (Device(COMPUTE, needs.control),))))
        return needs

    def _of_device(self, entry: Entry, needs: Needs, shared: Iterable[Edits]) -> Edits:
        unit = self._hardware.unit(entry.gpu)
        if unit is None:
            raise HostError(f"GPU {entry.gpu} of {entry.device} is not in this node any more")
        roots = needs.roots
        edits = [node_edits(_nodes(entry, unit, roots)), *shared]
        if has_graphics(entry, unit):
            modeset = modeset_node(roots)
            drm = drm_nodes(roots, unit.card.pci_bus_id)
            nodes = [*([modeset] if modeset else []), *drm]
            edits += [node_edits(nodes), needs.files.graphics()]
        return joined(*edits)


class NodeNeeds:
    """Checks driver libraries, kernel modules and capability files at each ``look``.

    While one is missing, no GPU of the node is offered. ``missing``: text on what is missing and
    the remedy; empty if nothing is. ``hook``: path of the CDI hook program that containers get, or
    empty. ``sharing``: returns the strategies of sharing that can be served. ``on_other_files``: is
    called when driver files have come, gone or moved, as written specs name the old ones.
    """

    def __init__(
        self,
        common: Common,
        hardware: Hardware,
        specs: Specs,
        *,
        sharing: Callable[[], tuple[str, ...]],
        on_other_files: Callable[[], None] = lambda: None,
    ) -> None:
        self._hardware = hardware
        self._specs = specs
        self._reports = common.reports
        self._sharing = sharing
        self._on_change = common.changed
        self._on_other_files = on_other_files
        self._files: DriverFiles | None = None
        self._offers: tuple[str, ...] | None = None
        self.missing = ""
        self.hook = ""

    @property
    def offers(self) -> tuple[str, ...]:
        """Strategies of sharing that can be served, named as capabilities of the MigNode."""
        if self._offers is None:
            self._offers = self._sharing()
        return self._offers

    def look(self) -> None:
        """Look at the files again; report a change of the hook, the strategies or what is missing.

        It is reported to listeners, the GPUs' conflicts, events of the Node, and the log.
        """
        files, before = self._specs.driver_files(), (self.hook, self._offers)
        if self._files is not None and self._files is not files:
            self._on_other_files()
        if files is not self._files and files.cuda is not None and files.lacking:
            _log.warning("%s", files.lacking)
        self._files, self._offers = files, self._sharing()
        self.hook = files.hook.path if files.hook is not None else ""
        if self.hook != before[0]:
            way = self.hook or "mounts alone, without a hook"
            _log.info("containers get their driver by %s", way)
        if (self.hook, self._offers) != before:
            self._on_change()
        missing = ""
        try:
            self._specs.check()
        except IncompleteError as error:
            missing = str(error)
        if missing != self.missing:
            self.missing = missing
            self._tell(missing)

    def _tell(self, missing: str) -> None:
        reason = NodeReason.DRIVER_INCOMPLETE
        self._hardware.set_conflict(Conflict(reason, missing) if missing else None, source=_NEEDS)
        if missing:
            _log.error("no slice can be used on this node: %s", missing)
            self._reports.report_node(reason, missing, warning=True)
        else:
            _log.info("nothing is missing on this node any more")


def _nodes(entry: Entry, gpu: GpuUnit, roots: Roots) -> tuple[DeviceNode, ...]:
    parent = gpu_node(roots, gpu.card.minor)
    if entry.view and gpu.card.mig_enabled:
        return (parent, monitor_capability(roots))
    if entry.placement is None:
        return (parent,)
    if entry.gi_id is None or entry.ci_id is None:
        raise HostError(f"{entry.device} has no compute instance yet")
    capabilities = instance_capabilities(
        roots, gpu_minor=gpu.card.minor, gi_id=entry.gi_id, ci_id=entry.ci_id
    )
    return (parent, *capabilities)


def daemon_nodes(hardware: Hardware, roots: Roots, entry: Entry) -> tuple[DeviceNode, ...]:
    """Device nodes for a daemon, such as that of MPS, that serves the device of an entry.

    Raises:
        HostError: the device is not known, or the kernel's number of a device node.
    """
    unit = hardware.unit(entry.gpu)
    if unit is None:
        raise HostError(f"GPU {entry.gpu} of {entry.device} is not in this node any more")
    return (*control_nodes(roots).nodes, *_nodes(entry, unit, roots))


def _device_id(entry: Entry) -> str:
    """Name of an entry's device in the specs; two shares of one device have different names."""
    device = f"{entry.device}-{entry.share_id}" if entry.share_id else entry.device
    return device_id(entry.claim.uid, device)


def has_engines(entry: Entry, gpu: GpuUnit) -> bool:
    """True for a whole GPU, and for a slice with engines that decode or encode."""
    if entry.view:
        return False
    if entry.profile_id is None:
        return True
    geometry = gpu.card.geometry
    profile = geometry.by_id(entry.profile_id) if geometry is not None else None
    if profile is None:
        return False
    engines = profile.engines
    return any((engines.decoders, engines.encoders, engines.jpeg_engines, engines.ofa_engines))


def has_graphics(entry: Entry, gpu: GpuUnit) -> bool:
    """True for a whole GPU without MIG mode, and for a slice with a graphics profile."""
    if entry.profile_id is None:
        return not entry.view and not gpu.card.mig_enabled
    return _GRAPHICS in entry.profile.partition("+")[2]
