"""A journal that was lost or damaged, found again from the hardware and this node's claims.

An instance that lies exactly where a reserved claim of this node was given one is taken for that
claim's. Every other instance that no record explains is another's, and left alone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from dra.allocation import AllocatedDevice
from dra.claims import Claim, read_claim
from dra.kube.errors import KubeError
from dra.kube.resources import RESOURCE_CLAIMS
from dra.kube.transport import KubeApi
from dra.reasons import NodeReason
from kubeletplugin.entries import Entry, State
from kubeletplugin.errors import PluginError
from kubeletplugin.hardware import GpuUnit, Hardware
from kubeletplugin.journal import Journal
from kubeletplugin.logfields import about
from kubeletplugin.logfields import device as device_fields
from kubeletplugin.lookup import Wanted, resolve
from kubeletplugin.nvml.errors import NvmlError
from kubeletplugin.nvml.instances import list_compute_instances, list_gpu_instances
from kubeletplugin.observer import Action, Observer
from kubeletplugin.reports import Reports

_log = logging.getLogger(__name__)


class Rebuild:
    """Adds to the journal what is missing from it, once."""

    def __init__(  # noqa: PLR0913 - where it looks
        self,
        hardware: Hardware,
        journal: Journal,
        *,
        claims: Callable[[], Iterable[Claim]],
        reports: Reports,
        driver: str,
        pool: str,
        observer: Observer | None = None,
    ) -> None:
        self._observer = observer or Observer()
        self._hardware = hardware
        self._journal = journal
        self._claims = claims
        self._reports = reports
        self._driver = driver
        self._pool = pool
        self._failure = ""

    def run(self) -> bool:
        """Rebuild if that is due; False while it cannot be done. Never raises."""
        if not self._journal.rebuild:
            return True
        try:
            found = [e for c in self._claims() if c.reserved_for for e in self._of_claim(c)]
            self._journal.rebuilt(found)
        except (KubeError, NvmlError, PluginError) as error:
            if str(error) != self._failure:
                _log.warning("the journal is not rebuilt yet: %s", error)
            self._failure = str(error)
            return False
        for gpu in {e.gpu for e in found}:
            self._hardware.look(gpu)  # what was foreign there has an owner now
        for entry in found:
            _log.warning(
                "found on the hardware, for the rebuilt journal", extra=device_fields(entry)
            )
            self._observer.acted(Action.REBUILT)
        if found or self._journal.problems:
            names = ", ".join(f"{e.device} of claim {e.claim}" for e in found) or "nothing"
            message = f"found on the hardware and in this node's claims: {names}"
            _log.warning("journal rebuilt: %s", message)
            self._reports.node(NodeReason.REBUILT, message)
        return True

    def _of_claim(self, claim: Claim) -> list[Entry]:
        allocation = claim.allocation
        if allocation is None or self._journal.of_claim(claim.ref.uid):
            return []
        given = [d for d in allocation.of_driver(self._driver) if d.pool == self._pool]
        entries = [self._of_device(claim, d, total=len(given)) for d in given]
        return [e for e in entries if e is not None]

    def _of_device(self, claim: Claim, device: AllocatedDevice, *, total: int) -> Entry | None:
        try:
            unit, wanted = resolve(device, self._hardware)
        except PluginError as error:
            fields = about(claim.ref, device=device.device, error=str(error))
            _log.warning("not looked for on the hardware", extra=fields)
            return None
        entry = wanted.entry(claim.ref, boot_id=self._hardware.boot_id, total=total)
        with unit.lock:
            return self._found(unit, wanted, entry.at(State.PREPARED, adopted=True))

    def _found(self, unit: GpuUnit, wanted: Wanted, entry: Entry) -> Entry | None:
        if wanted.view:
            return entry
        known = self._journal.of_gpu(unit.uuid)
        if wanted.placement is None:
            return None if known else entry
        taken = any(e.placement is None or e.placement.overlaps(wanted.placement) for e in known)
        if taken or unit.card.geometry is None:
            return None
        session = self._hardware.session
        shape = (wanted.profile_id, wanted.placement)
        for gi in list_gpu_instances(session, unit.uuid, unit.card.geometry):
            if (gi.profile_id, gi.placement) != shape:
                continue
            compute = list_compute_instances(session, unit.uuid, gi.id)
            if not compute:
                return entry.at(State.GI_CREATED, gi_id=gi.id)
            if len(compute) == 1:
                [ci] = compute
                return entry.at(State.PREPARED, gi_id=gi.id, ci_id=ci.id, mig_uuid=ci.uuid)
        return None


def all_claims(api: KubeApi) -> Iterable[Claim]:
    """Every claim of the cluster.

    Raises:
        KubeError: no answer, or no permission to list them.
    """
    return (read_claim(c) for c in api.list(RESOURCE_CLAIMS).items)
