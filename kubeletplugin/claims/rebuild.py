"""Rebuilding of a lost or damaged journal from the hardware and this node's claims.

A GPU instance with the profile and placement that was allocated to a reserved claim of this node,
or that kubelet gives to a pod, is taken for that claim's. Every other instance without a record is
taken for another program's, and left alone. The rebuild ends when every device of those claims was
looked for. A claim that cannot be read, a GPU, a kubelet or an API server that does not answer
delays the end. Claims are listed, after growing pauses, until one list succeeds; after that they
are read by name.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Iterable

from dra.claims.reasons import NodeReason
from dra.common.resources import Obj
from dra.gpu.inventory import ClaimRef
from dra.kube.errors import KubeError
from dra.kube.timing import Backoff
from kubeletplugin.claims.holders import Holders
from kubeletplugin.claims.lookup import ClaimReader, Given
from kubeletplugin.claims.wanted import intent
from kubeletplugin.common import Common
from kubeletplugin.errors import DeviceError, HardwareError, ModeError, PluginError
from kubeletplugin.gpus.gpu import GpuUnit
from kubeletplugin.gpus.hardware import Hardware
from kubeletplugin.journal.entries import Entry, EntryKey, State, share_slice
from kubeletplugin.nvml.errors import NvmlError
from kubeletplugin.nvml.instances import list_compute_instances, list_gpu_instances
from kubeletplugin.telemetry.observer import Action
from kubeletplugin.telemetry.observer import device as device_fields
from kubeletplugin.times import LIST_PAUSE_SECONDS, LONGEST_LIST_PAUSE_SECONDS, LOOK_SECONDS

_log = logging.getLogger(__name__)


class Rebuild:
    """Adds missing entries to the journal. Thread-safe.

    It looks for the devices in the first complete list of claims: devices allocated later were made
    with a record. Each device is looked for until one look succeeds, and then no more: an instance
    that appears at its place later is another program's.
    """

    def __init__(
        self, common: Common, hardware: Hardware, claims: ClaimReader, holders: Holders
    ) -> None:
        self._journal = common.journal
        self._reports = common.reports
        self._clock = common.clock
        self._acted = common.telemetry.metrics.acted
        self._hardware = hardware
        self._claims = claims
        self._holders = holders
        self._failure = ""
        self._lock = threading.Lock()
        self._pause = Backoff(first=LIST_PAUSE_SECONDS, limit=LONGEST_LIST_PAUSE_SECONDS)
        self._due: dict[EntryKey, ClaimRef] | None = None
        self._done: set[EntryKey] = set()
        self._settled: set[str] = set()
        self._found: list[Entry] = []

    def run(self, *, about: ClaimRef | None = None) -> bool:
        """Rebuild the journal if that is due. Never raises.

        ``about``: look for the devices of this claim only. Returns False if a claim or a device
        could not be looked at.
        """
        with self._lock:
            if not self._journal.rebuild:
                return True
            try:
                doubts = self._look() if about is None else self._look_about(about)
                if not doubts and about is None:
                    self._journal.rebuilt()
            except (KubeError, PluginError) as error:
                doubts = [str(error)]
            if doubts:
                failure = "; ".join(doubts)
                if failure != self._failure:
                    _log.warning("the journal is not rebuilt yet: %s", failure)
                self._failure = failure
            elif about is None and (self._found or self._journal.problems):
                names = ", ".join(f"{e.device} of claim {e.claim}" for e in self._found)
                message = f"found on the hardware and in this node's claims: {names or 'nothing'}"
                _log.warning("journal rebuilt: %s", message)
                self._reports.report_node(NodeReason.REBUILT, message)
            return not doubts

    def may_miss(self, uid: str) -> bool:
        """True if a claim may have a device here that is not in the journal yet."""
        with self._lock:
            return self._journal.rebuild and not self._is_settled(uid)

    def _is_settled(self, uid: str) -> bool:
        if self._due is None:
            return uid in self._settled
        return all(key[0] != uid for key in self._due.keys() - self._done)

    def _look_about(self, ref: ClaimRef) -> list[str]:
        if self._is_settled(ref.uid):
            return []
        doubts = self._look_for([ref], about=ref.uid)
        if not doubts:
            self._settled.add(ref.uid)
        return doubts

    def _look(self) -> list[str]:
        """Look for all devices that are still due; returns why some could not be looked for.

        Raises:
            KubeError: the claims cannot be listed.
            HostError: the journal cannot be written.
        """
        if self._due is not None:
            left = self._due.keys() - self._done
            return self._look_for(dict.fromkeys(self._due[key] for key in left))
        now = self._clock.monotonic()
        if self._pause.left(now):
            return [self._failure]
        self._pause.fail(now)
        return self._find([*self._claims.listed()], are_all=True)

    def _look_for(self, refs: Iterable[ClaimRef], *, about: str = "") -> list[str]:
        found = (obj for ref in refs if (obj := self._claims.find(ref)) is not None)
        return self._find([*found], about=about)

    def _find(
        self, claims: Collection[Obj], *, are_all: bool = False, about: str = ""
    ) -> list[str]:
        """Look for those devices of ``claims`` that are due, and for those that kubelet gives pods.

        ``are_all``: these are all claims of this node, so their devices are all that are due.
        ``about``: UID of the only claim in question, or empty. Returns the reasons why some could
        not be looked for.
        """
        doubts: list[str] = []
        # A claim may be gone while a pod has its devices. Kubelet lists them a little longer than
        # until Unprepare: a claim that was looked for before is done.
        given = {
            each.key: each
            for each in (self._holders.given() if not (about and claims) else ())
            if about in {"", each.claim.uid} and each.claim.uid not in self._settled
        }
        for obj in claims:
            try:
                found = self._claims.given_here(obj)
            except KubeError as error:
                doubts.append(str(error))
            else:
                given |= {g.key: g for g in found if g.is_reserved}
        if are_all and not doubts:
            self._due = {key: g.claim for key, g in given.items()}
        due = given.keys() if self._due is None else given.keys() & self._due
        for key in due - self._done:
            try:
                self._look_for_device(given[key])
            except (NvmlError, DeviceError, HardwareError) as error:
                doubts.append(f"{key[1]} of claim {given[key].claim}: {error}")
            else:
                self._done.add(key)
        return doubts

    def _look_for_device(self, given: Given) -> None:
        """Look for one device, and add it to the journal if it is on the hardware.

        Raises:
            NvmlError, DeviceError, HardwareError: it could not be looked for.
            HostError: the journal cannot be written.
        """
        try:
            unit, wanted = intent(
                given.device, given.claim, self._hardware, total=given.total, is_there=True
            )
        except ModeError:
            return  # without MIG mode there are no instances
        if not unit.lock.enter(LOOK_SECONDS):
            raise HardwareError(f"{unit.name} is busy; it is tried again")
        try:
            if self._journal.get(wanted) is not None:
                return
            entry = self._seen(unit, wanted.at(State.PREPARED))
            if entry is not None:
                self._journal.put(entry)
        finally:
            unit.lock.leave()
        if entry is not None:
            self._found.append(entry)
            _log.warning("found on the hardware", extra=device_fields(entry))
            self._acted(Action.REBUILT)
            self._hardware.look_soon(entry.gpu)  # an instance published as foreign has an owner now

    def _seen(self, unit: GpuUnit, entry: Entry) -> Entry | None:
        if entry.view:
            return entry
        known = self._journal.of_gpu(unit.uuid)
        if entry.placement is None:
            shared = entry.share is not None and all(e.share is not None for e in known)
            return entry if shared or not known else None
        others = [e for e in known if not share_slice(entry, e)]
        if any(e.placement is None or e.placement.overlaps(entry.placement) for e in others):
            return None
        geometry = unit.card.geometry
        if geometry is None:
            raise DeviceError(f"what lies on {unit.name} is not known")
        session = self._hardware.session
        for gi in list_gpu_instances(session, unit.uuid, geometry):
            if (gi.profile_id, gi.placement) != (entry.profile_id, entry.placement):
                continue
            compute = list_compute_instances(session, unit.uuid, gi.id)
            if not compute:
                return entry.at(State.GI_CREATED, gi_id=gi.id)
            if len(compute) == 1:
                [ci] = compute
                return entry.at(State.PREPARED, gi_id=gi.id, ci_id=ci.id, mig_uuid=ci.uuid)
        return None
