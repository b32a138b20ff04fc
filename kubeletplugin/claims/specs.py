"""Needs of containers with a device of this node: CDI specs of claims, and what the node lacks."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from cdi.spec import CdiError, Device, DeviceNode, Edits, Spec, claim_kind, device_id, joined
from cdi.store import SpecStore
from dra.claims.reasons import NodeReason
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


_NOTHING = Edits()
_NEEDS = "node needs"


@contextmanager
def _host_errors() -> Iterator[None]:
    """Raise HostError for what the directory of specs refuses."""
    try:
        yield
    except CdiError as error:
        raise HostError(str(error)) from error


class Specs:
    """Writes and removes claims' specs. Raises HostError, naming the file.

    A claim's spec has what the spec of all claims has too, but for that part of it of which kubelet
    was told with the claim (``Entry.files``): kubelet keeps the names that it was told.
    ``sharing`` has what containers get besides with each device of a claim that shares one.
    """

    def __init__(
        self,
        driver: str,
        hardware: Hardware,
        *,
        roots: Roots,
        search: DriverSearch,
        sharing: Callable[[Sequence[Entry]], Mapping[EntryKey, Iterable[Edits]]],
    ) -> None:
        self._kind = claim_kind(driver)
        self._hardware = hardware
        self._roots = roots
        self._search = search
        self._sharing = sharing
        self._store = SpecStore(roots.cdi, driver)
        self._unmade = ""
        self._driver_spec = DriverSpec(driver, self._store, self._needs)

    def qualified(self, entry: Entry) -> tuple[str, ...]:
        """The CDI names that kubelet hands to the runtime, in this order."""
        return (*self._driver_spec.qualified(entry.files), f"{self._kind}={_device_id(entry)}")

    def shared_files(self, entry: Entry) -> tuple[str, ...]:
        """Devices of the common spec to tell kubelet of with an entry that it knows nothing of."""
        unit = self._hardware.unit(entry.gpu)
        has_video = unit is not None and has_engines(entry, unit)
        return (COMPUTE, VIDEO) if has_video else (COMPUTE,)

    def write(self, entries: Sequence[Entry], needs: Needs | None = None) -> None:
        """Write the spec of one claim, of which these are all the entries; no-op if it is there.

        The spec that claims have in common is there before: also for one that does without, as
        kubelet may know more than a journal that was lost. ``needs`` is what ``check`` has found,
        unless that is to be looked for anew.
        """
        needs = needs or self._needs()
        self._driver_spec.ensure(needs)
        spec = self.build(entries, needs)
        self._make_nodes(spec, needs)
        with _host_errors():
            self._store.write(entries[0].claim.uid, spec)

    def _make_nodes(self, spec: Spec, needs: Needs) -> None:
        """Have the claim's nodes on the host too; only pods with ``hostUsers: false`` need them."""
        edits = (needs.control, *(device.edits for device in spec.devices))
        problem = make_nodes(needs.roots, (node for e in edits for node in e.nodes))
        if problem and problem != self._unmade:
            _log.warning("pods with hostUsers: false will not start here: %s", problem)
        self._unmade = problem

    def remove(self, claim_uid: str) -> None:
        """Remove a claim's spec; that there is none is fine."""
        with _host_errors():
            self._store.remove(claim_uid)

    def remove_common(self) -> None:
        """Remove the spec that claims have in common, which none may need any more."""
        self._driver_spec.remove()

    def claims(self) -> frozenset[str]:
        """UIDs of the claims that have a spec."""
        with _host_errors():
            return self._store.claims()

    def sweep(self, keep: set[str]) -> int:
        """Remove half-written specs and those of claims not in ``keep``; returns how many."""
        with _host_errors():
            return len(self._store.sweep(keep))

    def check(self) -> Needs:
        """Refuse while no container could be given what it needs, before anything is made for it.

        Raises:
            IncompleteError: says what the node lacks, and the remedy.
        """
        needs = self._needs()
        try:
            if any(unit.card.mig_enabled for unit in self._hardware.units()):
                check_capabilities(needs.roots)
        except HostError as error:
            raise IncompleteError(str(error)) from error
        return needs

    def check_writable(self) -> None:
        """Refuse while the directory of specs cannot be written to."""
        with _host_errors():
            self._store.check()

    def driver_files(self) -> DriverFiles:
        """The driver's files; another object when the files have changed."""
        return self._search.find(self._hardware.driver_version)

    def build(self, entries: Sequence[Entry], needs: Needs | None = None) -> Spec:
        """The spec of one claim.

        Raises:
            IncompleteError: the node lacks what every container needs.
            HostError: it lacks what one of these needs.
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
            common=self._common(entries, needs),
        )

    def _common(self, entries: Sequence[Entry], needs: Needs) -> Edits:
        if all(COMPUTE in e.files for e in entries):
            return _NOTHING
        return self._driver_spec.build(needs).common

    def _needs(self) -> Needs:
        """The needs of every container on this node now.

        Raises:
            IncompleteError: says what the node lacks, and the remedy.
        """
        files = self.driver_files()
        try:
            self._search.check(files)
            roots = self._roots.now()
            return Needs(files, control_nodes(roots), roots)
        except HostError as error:
            raise IncompleteError(str(error)) from error

    def _of_device(self, entry: Entry, needs: Needs, shared: Iterable[Edits]) -> Edits:
        unit = self._hardware.unit(entry.gpu)
        if unit is None:
            raise HostError(f"GPU {entry.gpu} of {entry.device} is not in this node any more")
        roots, files = needs.roots, needs.files
        edits = [node_edits(_nodes(entry, unit, roots)), *shared]
        if has_engines(entry, unit) and VIDEO not in entry.files:
            edits.append(files.video)
        if has_graphics(entry, unit):
            modeset = modeset_node(roots)
            drm = drm_nodes(roots, unit.card.pci_bus_id)
            nodes = [*([modeset] if modeset else []), *drm]
            edits += [node_edits(nodes), files.graphics()]
        return joined(*edits)


class NodeNeeds:
    """Looks at driver libraries, kernel modules and capability files at each ``look``.

    While something is missing, no GPU of the node is offered; when it is there, all are again.
    ``missing`` says what, with the remedy; ``hook`` is the hook program that containers get, or
    empty. ``sharing`` tells the strategies that can be served. ``on_other_files`` is called when
    files of the driver have come, gone or moved, so that specs that were written name other ones.
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
        """Strategies of sharing that can be served, as capabilities of the MigNode."""
        if self._offers is None:
            self._offers = self._sharing()
        return self._offers

    def look(self) -> None:
        """Look, and tell the node, its GPUs and the log when it has become otherwise."""
        files, before = self._specs.driver_files(), (self.hook, self._offers)
        if self._files is not None and self._files is not files:
            self._on_other_files()
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
    """Device nodes of a program that serves the device of an entry beside its containers.

    Raises:
        HostError: the device or the kernel's number of a node is not known.
    """
    unit = hardware.unit(entry.gpu)
    if unit is None:
        raise HostError(f"GPU {entry.gpu} of {entry.device} is not in this node any more")
    return (*control_nodes(roots).nodes, *_nodes(entry, unit, roots))


def _device_id(entry: Entry) -> str:
    """Name of an entry's device in the specs: a device that a claim shares twice has two."""
    device = f"{entry.device}-{entry.share_id}" if entry.share_id else entry.device
    return device_id(entry.claim.uid, device)


def has_engines(entry: Entry, gpu: GpuUnit) -> bool:
    """True if a device can decode or encode: a whole GPU can, of slices those with such engines."""
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
    """True if a device can do graphics: a whole GPU without MIG, and slices made for it."""
    if entry.profile_id is None:
        return not entry.view and not gpu.card.mig_enabled
    return _GRAPHICS in entry.profile.partition("+")[2]
