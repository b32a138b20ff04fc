"""Rebuilding of a lost or damaged journal from the hardware and this node's claims.

An instance that lies exactly where a reserved claim of this node was given one is taken for that
claim's. Every other instance that no record explains is another's, and left alone. It is over when
every device of those claims was looked for: a claim that cannot be read, a GPU that does not answer
and an API server that is silent are no sign that something is not there. Claims are listed until
that was possible once, after growing pauses; otherwise one is asked for by name.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable

from dra.claims.reasons import NodeReason
from dra.common.resources import Obj
from dra.gpu.inventory import ClaimRef
from dra.kube.errors import KubeError
from dra.kube.timing import Backoff
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
from kubeletplugin.telemetry.reports import device as device_fields
from kubeletplugin.times import LIST_PAUSE_SECONDS, LONGEST_LIST_PAUSE_SECONDS, LOOK_SECONDS

_log = logging.getLogger(__name__)


class Rebuild:
    """Adds to the journal what is missing from it. Thread-safe.

    The devices that it looks for are those of the first time at which the claims could be read:
    what was allocated later has been made with a record. Each is looked for until that was possible
    once, and then no more: what appears in its place later is another's.
    """

    def __init__(self, common: Common, hardware: Hardware, claims: ClaimReader) -> None:
        self._journal = common.journal
        self._reports = common.reports
        self._clock = common.clock
        self._acted = common.telemetry.metrics.acted
        self._hardware = hardware
        self._claims = claims
        self._failure = ""
        self._lock = threading.Lock()
        self._pause = Backoff(first=LIST_PAUSE_SECONDS, limit=LONGEST_LIST_PAUSE_SECONDS)
        self._due: dict[EntryKey, ClaimRef] | None = None
        self._done: set[EntryKey] = set()
        self._settled: set[str] = set()
        self._found: list[Entry] = []

    def run(self, *, about: ClaimRef | None = None) -> bool:
        """Rebuild if that is due; False while something could not be looked at. Never raises.

        With a claim it looks for what that claim may miss, and for nothing else.
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
        """True if a claim may hold something here of which there is no record yet."""
        with self._lock:
            return self._journal.rebuild and not self._is_settled(uid)

    def _is_settled(self, uid: str) -> bool:
        if self._due is None:
            return uid in self._settled
        return all(key[0] != uid for key in self._due.keys() - self._done)

    def _look_about(self, ref: ClaimRef) -> list[str]:
        if self._is_settled(ref.uid):
            return []
        doubts = self._look_for([ref])
        if not doubts:
            self._settled.add(ref.uid)
        return doubts

    def _look(self) -> list[str]:
        """Look for what was not looked for yet; returns why some of it still was not.

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
        return self._find(self._claims.listed(), are_all=True)

    def _look_for(self, refs: Iterable[ClaimRef]) -> list[str]:
        return self._find(obj for ref in refs if (obj := self._claims.find(ref)) is not None)

    def _find(self, claims: Iterable[Obj], *, are_all: bool = False) -> list[str]:
        """Look for devices that claims were given as far as they are due; why some could not be."""
        doubts: list[str] = []
        given: dict[EntryKey, Given] = {}
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
        """Look for one device, and put it into the journal if it is there.

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
            self._hardware.look_soon(entry.gpu)  # what was foreign there has an owner now

    def _seen(self, unit: GpuUnit, entry: Entry) -> Entry | None:
        if entry.view:
            return entry
        known = self._journal.of_gpu(unit.uuid)
        if entry.placement is None:
            shared = entry.share is not None and all(e.share is not None for e in known)
            return entry if shared or not known else None
        others = [e for e in known if not share_slice(entry, e)]  # those who share it lie there
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
