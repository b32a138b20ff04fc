"""Slices made as soon as their claims are allocated here, given back if no pod comes.

Calls of kubelet go first: slices are made early only on a GPU on which nothing else works, for one
claim at a time. In the journal they are like slices that a Prepare has made and not told kubelet
of. So a Prepare finds them, a killed process leaves nothing without a record, and a failure here
fails no Prepare.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

from dra.gpu.inventory import ClaimRef
from dra.gpu.names import DeviceNameError, MigDevice, gpu_name, parse_device
from dra.kube.loop import Loop
from dra.kube.timing import Clock
from kubeletplugin.claims.lookup import ClaimFate, ClaimReader
from kubeletplugin.claims.node import Node
from kubeletplugin.common import Common, patiently
from kubeletplugin.errors import DeviceError, PluginError, StartingError
from kubeletplugin.gpus.gpu import GpuUnit
from kubeletplugin.journal.entries import HELD, Entry
from kubeletplugin.telemetry.observer import Action, about
from kubeletplugin.times import (
    AWAITED_SECONDS,
    EARLY_AGAIN_SECONDS,
    EARLY_PAUSE_SECONDS,
    FORGIVEN_SECONDS,
    UNDO_SECONDS,
    UNREADY_SECONDS,
)

_log = logging.getLogger(__name__)
MOST_OF_NAMESPACE = 8
MOST_OF_GPU = 16


@dataclass(slots=True)
class _Claim:
    """Slices that one claim is expected to use here, and the attempts to make them.

    ``devices``: names of the expected devices. ``wishes``: number of changes of ``devices``.
    ``open``: the last wish is neither made nor refused yet. ``not_before``: monotonic time of the
    next attempt. ``doubted``: it is to be checked whether its slices are still needed.
    ``early_since``: monotonic time since which slices made early exist.
    """

    ref: ClaimRef
    devices: tuple[str, ...] = ()
    wishes: int = 0
    open: bool = False
    not_before: float = 0.0
    doubted: bool = False
    early_since: float | None = None

    @property
    def is_over(self) -> bool:
        """True if this record is no longer needed."""
        return not (self.devices or self.doubted or self.early_since is not None)


class EarlySlices:
    """Makes slices early and gives them back; one thread decides, tasks do the work. Thread-safe.

    ``seconds``: time for which a slice is kept for its pod. If kube-scheduler waits for a claim's
    slices (is_awaited), they are tried for longer, and kept without a limit.
    """

    def __init__(self, common: Common, node: Node, claims: ClaimReader, *, seconds: float) -> None:
        self._journal = common.journal
        self._clock = common.clock
        self._readiness = common.readiness
        self._acted = common.telemetry.metrics.acted
        self._on_change = common.changed
        self._node = node
        self._hardware = node.removal.hardware
        self._outcomes = node.outcomes
        self.reader = claims
        self._seconds = seconds
        self._allowance = Allowance(common.clock)
        self._lock = threading.Lock()
        self._claims: dict[str, _Claim] = {}
        self._busy: set[str] = set()
        self.thread = Loop("early slices", self._turn, clock=common.clock)

    # -- what is wanted

    def expect(self, ref: ClaimRef, devices: tuple[str, ...], *, again: bool = False) -> None:
        """Have the slices of ``devices`` made, which are allocated to a claim.

        Without devices, slices made early are given back. The same devices as before change
        nothing, so that slices given back are not made again.
        ``again``: make them again all the same, as the claim's status does not show the result.
        """
        with self._lock:
            claim = self._claims.setdefault(ref.uid, _Claim(ref))
            if devices and devices == claim.devices and (claim.open or not again):
                return
            claim.ref, claim.devices, claim.open = ref, devices, bool(devices)
            claim.wishes += 1
            claim.doubted = claim.doubted or not devices
        if not devices:
            self._outcomes.forget(ref)
        elif self._outcomes.registered_at is None and not self._is_held(ref.uid):
            self._outcomes.cut_short()  # kubelet, which could not call, tries again after a minute
        self.thread.notify()

    def doubt(self, ref: ClaimRef) -> None:
        """Have it checked whether a claim's slices made early are still needed. Does not block."""
        with self._lock:
            self._claims.setdefault(ref.uid, _Claim(ref)).doubted = True
        self.thread.notify()

    def _turn(self) -> float | None:
        if not self._readiness.is_ready or self._journal.rebuild:
            return UNREADY_SECONDS
        claims = self._look_at_journal()
        pauses = [self._give_back(c) for c in claims]
        pauses += [self._begin(c) for c in claims if c.open]
        with self._lock:
            self._claims = {u: c for u, c in self._claims.items() if not c.is_over}
        return min((p for p in pauses if p is not None), default=None)

    def _look_at_journal(self) -> list[_Claim]:
        """All known claims, their times brought up to date from the journal."""
        now = self._clock.monotonic()
        of_claim: dict[str, list[Entry]] = {}
        for entry in self._journal.entries():
            of_claim.setdefault(entry.claim.uid, []).append(entry)
        with self._lock:
            for uid, entries in of_claim.items():
                if any(e.early for e in entries):
                    self._claims.setdefault(uid, _Claim(entries[0].claim))
            for uid, claim in self._claims.items():
                if not any(e.early for e in of_claim.get(uid, ())):
                    claim.early_since = None
                elif claim.early_since is None:
                    claim.early_since = now
            return [*self._claims.values()]

    # -- given back

    def _give_back(self, claim: _Claim) -> float | None:
        """Give back a claim's slices if not needed or kept too long; seconds until a next look."""
        if claim.doubted:
            claim.doubted = False
            if not self._begin_giving_back(claim, is_over=False):
                claim.doubted = True
                return EARLY_PAUSE_SECONDS
        if claim.early_since is None or self._outcomes.is_awaited(claim.ref.uid):
            return None
        left = claim.early_since + self._seconds - self._clock.monotonic()
        if left <= 0:
            self._begin_giving_back(claim, is_over=True)
        return max(left, UNREADY_SECONDS)

    def _begin_giving_back(self, claim: _Claim, *, is_over: bool) -> bool:
        uid = claim.ref.uid
        if not self._made_early(uid) and self._node.tasks.idle(uid):
            return True
        work = partial(self._give_back_now, claim, is_over=is_over)
        return self._node.tasks.begin(uid, "give back", work) is not None

    def _give_back_now(self, claim: _Claim, *, is_over: bool) -> None:
        """Remove a claim's slices made early; runs as the claim's only task.

        ``is_over``: their time is up; otherwise they stay while the claim may be used here.
        """
        ref, entries = claim.ref, self._made_early(claim.ref.uid)
        if not entries:
            return
        if not is_over and self.reader.fate(ref) in {ClaimFate.HERE, ClaimFate.UNKNOWN}:
            return
        left = str(self._node.removal.remove_unfinished(ref.uid, patience=UNDO_SECONDS))
        self._allowance.waste(ref.namespace, [e.gpu for e in entries])
        self._acted(Action.RETURNED)
        why = "no pod came for it in time" if is_over else "it is not to be used here"
        _log.info("given back: %s", why, extra=about(ref, error=left))

    # -- made

    def _begin(self, claim: _Claim) -> float | None:
        """Begin to make a claim's slices; returns seconds until the next attempt, or None."""
        ref, units = claim.ref, self._units(claim)
        uuids = {u.uuid for u in units}
        awaited = self._outcomes.is_awaited(ref.uid)
        if awaited and self._is_held(ref.uid):
            self._outcomes.made_early(ref)
        is_time = claim.not_before <= self._clock.monotonic()
        # What kube-scheduler waits for is made as for a bound pod: its pod could not start else.
        may_be = awaited or self._allowance.is_left(ref.namespace, uuids)
        if not (uuids and is_time and may_be):
            if awaited and units:
                return EARLY_AGAIN_SECONDS
            self._close(claim, claim.wishes)
            return None
        with self._lock:
            if uuids & self._busy:
                return None  # the end of that work begins the next turn
            self._busy |= uuids
        work = partial(self._make, claim, claim.wishes, uuids)
        is_free = not any(u.lock.is_held for u in units)
        if is_free and self._node.tasks.begin(ref.uid, "make early", work):
            return None
        with self._lock:
            self._busy -= uuids
        return EARLY_PAUSE_SECONDS

    def _make(self, claim: _Claim, wish: int, uuids: set[str]) -> None:
        ref, done = claim.ref, True
        try:
            done = self._attempt(claim)
        except PluginError as error:
            done = not (isinstance(error, StartingError) and self._outcomes.is_awaited(ref.uid))
            if done:
                self._outcomes.not_made_early(ref, error)
                self._allowance.waste(ref.namespace, uuids)
            else:
                claim.not_before = self._clock.monotonic() + EARLY_AGAIN_SECONDS
            self._acted(Action.REFUSED)
            _log.info("not made early", extra=about(ref, error=str(error)))
        except Exception as error:  # noqa: BLE001 - kubelet is told by Prepare
            self._acted(Action.REFUSED)
            _log.exception("not made early", extra=about(ref))
            defect = PluginError(f"internal error (see the log): {error!r}")
            self._outcomes.not_made_early(ref, defect)
        else:
            if done and self._made_early(ref.uid):
                self._acted(Action.AHEAD)
                _log.info("made early", extra=about(ref))
                self._outcomes.made_early(ref)
        finally:
            if done:
                self._close(claim, wish)
            with self._lock:
                self._busy -= uuids
                claim.doubted = claim.doubted or not claim.devices
                self._claims.setdefault(ref.uid, claim)
            self.thread.notify()

    def _attempt(self, claim: _Claim) -> bool:
        """Make a claim's slices; False if that is to be tried again.

        Failures that pass are retried here if kubelet does not ask before the slices are made.
        """
        work = partial(self._node.preparer.make_early, claim.ref)
        if not self._outcomes.is_awaited(claim.ref.uid):
            return work()
        end = self._clock.monotonic() + AWAITED_SECONDS
        return patiently(work, end=end, longest=UNDO_SECONDS, clock=self._clock)

    def _close(self, claim: _Claim, wish: int) -> None:
        """Close a wish; a newer one stays open."""
        with self._lock:
            claim.not_before = 0.0
            if claim.wishes == wish:
                claim.open = False

    def _is_held(self, uid: str) -> bool:
        return any(e.state in HELD for e in self._journal.of_claim(uid))

    def _made_early(self, uid: str) -> tuple[Entry, ...]:
        """The claim's entries if all were made early, so that kubelet knows none; else none."""
        entries = self._journal.of_claim(uid)
        return entries if all(e.early for e in entries) else ()

    def _units(self, claim: _Claim) -> list[GpuUnit]:
        """The GPUs of the claim's slices; none if nothing can be made early for it.

        That is so if kubelet was told of the claim, or if a GPU is not known.
        """
        if self._is_held(claim.ref.uid):
            return []
        found: dict[str, GpuUnit] = {}
        for name in claim.devices:
            try:
                device = parse_device(name)
                if isinstance(device, MigDevice):
                    unit = self._hardware.named(gpu_name(device.minor))
                    found[unit.uuid] = unit
            except (DeviceNameError, PluginError) as error:
                if self._outcomes.is_awaited(claim.ref.uid):
                    self._outcomes.not_made_early(claim.ref, DeviceError(f"{name}: {error}"))
                return []
        return [*found.values()]


class Allowance:
    """Bound on slices made early in vain, against users who create and delete pods again and again.

    A slice that was given back, or could not be made, counts for its namespace and for its GPU; the
    counts go down by one in ``FORGIVEN_SECONDS``. Thread-safe.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._wasted: dict[tuple[str, str], tuple[float, float]] = {}

    def is_left(self, namespace: str, gpus: Iterable[str]) -> bool:
        """True if claims of the namespace may have slices of these GPUs (UUIDs) made early."""
        levels, most = self._levels(), {("namespace", namespace): MOST_OF_NAMESPACE}
        most |= {("gpu", gpu): MOST_OF_GPU for gpu in gpus}
        return all(levels.get(key, 0.0) + 1 <= limit for key, limit in most.items())

    def waste(self, namespace: str, gpus: Iterable[str]) -> None:
        """Count slices that were made in vain, one for each GPU (UUID) in ``gpus``."""
        now = self._clock.monotonic()
        with self._lock:
            levels = self._levels()
            for gpu in gpus:
                for key in (("namespace", namespace), ("gpu", gpu)):
                    levels[key] = levels.get(key, 0.0) + 1
            self._wasted = {key: (level, now) for key, level in levels.items()}

    def _levels(self) -> dict[tuple[str, str], float]:
        """Present counts by kind and name, without those at zero."""
        now = self._clock.monotonic()
        levels = {k: n - (now - since) / FORGIVEN_SECONDS for k, (n, since) in self._wasted.items()}
        return {key: level for key, level in levels.items() if level > 0}
