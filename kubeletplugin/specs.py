"""The CDI spec of a claim, from what its journal entries say was made."""

from __future__ import annotations

from collections.abc import Sequence

from cdi.errors import CdiError
from cdi.spec import Device, DeviceNode, Edits, Spec, claim_kind, device_id
from cdi.store import SpecStore
from kubeletplugin.caps import Capability, instance_capabilities, monitor_capability
from kubeletplugin.driverfiles import common_edits, gpu_node
from kubeletplugin.errors import HostError
from kubeletplugin.hardware import Hardware
from kubeletplugin.journal import Entry
from kubeletplugin.roots import Roots


class Specs:
    """Writes and removes claims' specs. Raises HostError, naming the file."""

    def __init__(self, driver: str, hardware: Hardware, *, roots: Roots) -> None:
        self._kind = claim_kind(driver)
        self._hardware = hardware
        self._roots = roots
        self._store = SpecStore(roots.cdi, driver)

    def qualified(self, entry: Entry) -> str:
        """The CDI name that kubelet hands to the runtime."""
        return f"{self._kind}={device_id(entry.claim.uid, entry.device)}"

    def write(self, entries: Sequence[Entry]) -> None:
        """Write the spec of one claim, of which these are all the entries; no-op if it is there."""
        try:
            self._store.write(entries[0].claim.uid, self.build(entries))
        except CdiError as error:
            raise HostError(str(error)) from error

    def remove(self, claim_uid: str) -> None:
        """Remove a claim's spec; that there is none is fine."""
        try:
            self._store.remove(claim_uid)
        except CdiError as error:
            raise HostError(str(error)) from error

    def claims(self) -> frozenset[str]:
        """UIDs of the claims that have a spec."""
        try:
            return self._store.claims()
        except CdiError as error:
            raise HostError(str(error)) from error

    def sweep(self, keep: set[str]) -> int:
        """Remove half-written specs and those of claims not in ``keep``; returns how many."""
        try:
            return len(self._store.sweep(keep))
        except CdiError as error:
            raise HostError(str(error)) from error

    def build(self, entries: Sequence[Entry]) -> Spec:
        """The spec of one claim."""
        return Spec(
            kind=self._kind,
            devices=tuple(
                Device(device_id(e.claim.uid, e.device), Edits(nodes=self._nodes(e)))
                for e in entries
            ),
            common=common_edits(self._roots, driver_version=self._hardware.driver_version),
        )

    def _nodes(self, entry: Entry) -> tuple[DeviceNode, ...]:
        unit = self._hardware.unit(entry.gpu)
        if unit is None:
            raise HostError(f"GPU {entry.gpu} of {entry.device} is not in this node any more")
        parent = gpu_node(self._roots, unit.card.minor)
        if entry.view and unit.card.mig_enabled:
            return (parent, _capability_node(monitor_capability(self._roots)))
        if entry.placement is None:
            return (parent,)
        if entry.gi_id is None or entry.ci_id is None:
            raise HostError(f"{entry.device} has no compute instance yet")
        capabilities = instance_capabilities(
            self._roots, gpu_minor=unit.card.minor, gi_id=entry.gi_id, ci_id=entry.ci_id
        )
        return (parent, *(_capability_node(c) for c in capabilities))


def _capability_node(capability: Capability) -> DeviceNode:
    return DeviceNode(
        capability.path,
        major=capability.major,
        minor=capability.minor,
        file_mode=capability.mode,
    )
