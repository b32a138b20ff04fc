"""Slices made as soon as their claims are allocated or reserved here, given back if no pod comes.

Calls of kubelet go first: slices are made early only on a GPU on which nothing else works, for one
claim at a time. In the journal they are like slices that a Prepare has made and not told kubelet
of. So a Prepare finds them, a killed process leaves nothing without a record, and a failure here
fails no Prepare.

Reservations are for claims that are to be allocated here once their slices are made. The controller
writes them into ``spec`` of the MigNode; the answers are in its ``status``. The time of a
reservation counts from when this process first sees it, also after a restart: the controller has
its own, shorter limit.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

from api.mignode import MOST_RESERVATIONS
from dra.claims.allocation import AllocatedDevice
from dra.gpu.inventory import Answer, AnswerState, ClaimRef, Reservation
from dra.gpu.names import DeviceNameError, MigDevice, gpu_name, parse_device
from dra.kube.loop import Loop
from dra.kube.timing import Clock
from kubeletplugin.claims.lookup import ClaimFate, ClaimReader
from kubeletplugin.claims.node import Node
from kubeletplugin.common import Common, patiently
from kubeletplugin.errors import DeviceError, PluginError, StartingError
from kubeletplugin.gpus.gpu import GpuUnit
from kubeletplugin.journal.entries import HELD, Entry, State
from kubeletplugin.telemetry.observer import Action
from kubeletplugin.telemetry.reports import about
from kubeletplugin.times import (
    AWAITED_SECONDS,
    EARLY_AGAIN_SECONDS,
    EARLY_PAUSE_SECONDS,
    FORGIVEN_SECONDS,
    LONGEST_OVERDUE_SECONDS,
    OVERDUE_SECONDS,
    RESERVED_SECONDS,
    UNDO_SECONDS,
    UNREADY_SECONDS,
)

_log = logging.getLogger(__name__)
MOST_OF_NAMESPACE = 8
MOST_OF_GPU = 16
_MESSAGE = 512
_MADE = {State.CI_CREATED} | HELD
_REFUSED = (
    "nothing is made early for it: it is a share of a slice, too many slices were made for nothing "
    "for its namespace or GPU lately, or the GPU is not known"
)


@dataclass(slots=True)
class _Reserved:
    """A reservation, which asks for slices before their claim is allocated, and its outcome.

    ``until``: monotonic time until which the slices are kept. ``is_allocated``: the claim has been
    allocated to this node. ``state``, ``message``: the answer to the controller if the slices
    cannot be made; None and empty otherwise.
    """

    asked: Reservation
    until: float
    is_allocated: bool = False
    state: AnswerState | None = None
    message: str = ""


@dataclass(slots=True)
class _Claim:
    """Slices that one claim is expected to use here, and the attempts to make them.

    ``devices``: names of the expected devices. ``wishes``: number of changes of ``devices``.
    ``open``: the last wish is neither made nor refused yet. ``not_before``: monotonic time of the
    next attempt. ``doubted``: it is to be checked whether its slices are still needed.
    ``early_since``: monotonic time since which slices made early exist. ``whole_since``: since when
    all are whole and its pod may be bound. ``is_overdue``: published as not asked for in time.
    """

    ref: ClaimRef
    devices: tuple[str, ...] = ()
    wishes: int = 0
    open: bool = False
    not_before: float = 0.0
    doubted: bool = False
    early_since: float | None = None
    whole_since: float | None = None
    is_overdue: bool = False
    reserved: _Reserved | None = None

    @property
    def is_over(self) -> bool:
        """True if this record is no longer needed."""
        is_wanted = bool(self.devices) or self.reserved is not None
        return not (is_wanted or self.doubted or self.early_since is not None)


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
        self._reader = claims
        self._seconds = seconds
        self._allowance = Allowance(common.clock)
        self._lock = threading.Lock()
        self._claims: dict[str, _Claim] = {}
        self._busy: set[str] = set()
        self.thread = Loop("early slices", self._turn, clock=common.clock)

    # -- what is wanted

    def expect(self, ref: ClaimRef, devices: tuple[str, ...], *, again: bool = False) -> None:
        """Have the slices of ``devices`` made, which are allocated to a claim.

        Without devices, slices made early are given back, unless the claim is reserved here. The
        same devices as before change nothing, so that slices given back are not made again.
        ``again``: make them again all the same, as the claim's status does not show the result.
        """
        with self._lock:
            reserved = self._reserved(ref.uid)
            if reserved is not None:
                reserved.is_allocated = bool(devices)
            is_kept = not devices and self._holds(reserved)
        if not is_kept:
            self._want(ref, devices, again=again)

    def take(self, asked: Iterable[Reservation]) -> None:
        """Take all present reservations; of several for one claim the last one counts."""
        now = self._clock.monotonic()
        wanted = {r.claim.uid: r for r in [*asked][:MOST_RESERVATIONS]}
        with self._lock:
            before = {u: c.reserved for u, c in self._claims.items() if c.reserved is not None}
            ended = [r for u, r in before.items() if u not in wanted or wanted[u].id != r.asked.id]
            for each in ended:
                self._claims[each.asked.claim.uid].reserved = None
            begun = [r for u, r in wanted.items() if self._reserved(u) is None]
            for reservation in begun:
                ref = reservation.claim
                claim = self._claims.setdefault(ref.uid, _Claim(ref))
                claim.reserved = _Reserved(reservation, now + reservation.seconds)
        for each in ended:
            if not each.is_allocated:
                self._want(each.asked.claim, ())
        for reservation in begun:
            _log.info("reserved", extra=about(reservation.claim, detail=reservation.id))
            self._want(reservation.claim, tuple(d.device for d in reservation.devices))
        if ended or begun:
            self._on_change()

    def doubt(self, ref: ClaimRef) -> None:
        """Have it checked whether a claim's slices made early are still needed. Does not block."""
        with self._lock:
            self._claims.setdefault(ref.uid, _Claim(ref)).doubted = True
        self.thread.notify()

    def _want(self, ref: ClaimRef, devices: tuple[str, ...], *, again: bool = False) -> None:
        with self._lock:
            claim = self._claims.setdefault(ref.uid, _Claim(ref))
            if devices and devices == claim.devices and (claim.open or not again):
                return
            claim.ref, claim.devices, claim.open = ref, devices, bool(devices)
            claim.wishes += 1
            claim.doubted = claim.doubted or not devices
        if not devices:
            self._outcomes.forget(ref)
        self.thread.notify()

    # -- what is known of reservations

    def fate(self, ref: ClaimRef) -> ClaimFate:
        """``HERE`` if the claim is reserved here; otherwise its fate in the API server."""
        with self._lock:
            is_held = self._holds(self._reserved(ref.uid))
        return ClaimFate.HERE if is_held else self._reader.fate(ref)

    def devices(self, ref: ClaimRef) -> tuple[AllocatedDevice, ...]:
        """Devices that are reserved here for a claim; none without an open reservation.

        Raises:
            DeviceError: the name of a GPU stands for another GPU now.
        """
        with self._lock:
            reserved = self._reserved(ref.uid)
        if reserved is None or reserved.state:
            return ()
        for each in reserved.asked.devices:
            try:
                uuid = self._hardware.named(gpu_name(parse_device(each.device).minor)).uuid
            except (DeviceNameError, PluginError) as error:
                raise DeviceError(str(error)) from error
            if uuid != each.gpu:
                raise DeviceError(f"{each.device} is of GPU {uuid} now, not of {each.gpu}")
        return tuple(
            AllocatedDevice(each.request, self._reader.driver, self._reader.pool, each.device)
            for each in reserved.asked.devices
        )

    def answers(self) -> tuple[Answer, ...]:
        """Answers to reservations, for the MigNode; those still worked on have none yet."""
        with self._lock:
            known = [c.reserved for c in self._claims.values() if c.reserved is not None]
        found = []
        for each in known:
            state = each.state or (AnswerState.MADE if self._is_made(each.asked) else None)
            if state is not None:
                found.append(Answer(each.asked.id, state, each.message))
        return tuple(found)

    def _is_made(self, asked: Reservation) -> bool:
        entries = {e.device: e for e in self._journal.of_claim(asked.claim.uid)}
        found = ((entries.get(d.device), d.gpu) for d in asked.devices)
        return all(e is not None and e.state in _MADE and e.gpu == gpu for e, gpu in found)

    def _reserved(self, uid: str) -> _Reserved | None:
        claim = self._claims.get(uid)
        return None if claim is None else claim.reserved

    def _holds(self, reserved: _Reserved | None) -> bool:
        if reserved is None or reserved.state is not None:
            return False
        return reserved.until > self._clock.monotonic()

    def _end(self, claim: _Claim, state: AnswerState, why: str) -> bool:
        """Answer the claim's reservation with a failure; False if it has no reservation."""
        reserved = claim.reserved
        if reserved is None:
            return False
        with self._lock:
            reserved.state = reserved.state or state
            reserved.message = reserved.message or why[:_MESSAGE]
        self._on_change()
        return True

    def _turn(self) -> float | None:
        if not self._readiness.is_ready or self._journal.rebuild:
            return UNREADY_SECONDS
        claims = self._look_at_journal()
        pauses = [pause for c in claims for pause in (self._give_back(c), self._overdue(c))]
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
                entries = of_claim.get(uid, [])
                claim.early_since = _since(claim.early_since, now, any(e.early for e in entries))
                whole = bool(entries) and all(e.early and e.ci_id is not None for e in entries)
                # Neither a reservation nor kube-scheduler holds up the binding of its pod.
                is_bound = claim.reserved is None and not self._outcomes.is_awaited(uid)
                claim.whole_since = _since(claim.whole_since, now, whole and is_bound)
                claim.is_overdue = claim.is_overdue and claim.whole_since is not None
            return [*self._claims.values()]

    # -- given back

    def _give_back(self, claim: _Claim) -> float | None:
        """Give back a claim's slices if not needed or kept too long; seconds until a next look."""
        if claim.doubted:
            claim.doubted = False
            if not self._begin_giving_back(claim, is_over=False):
                claim.doubted = True
                return EARLY_PAUSE_SECONDS
        if claim.early_since is None:
            return None
        pauses = []
        if claim.reserved is not None:
            left = claim.reserved.until - self._clock.monotonic()
            if left <= 0:
                self._begin_giving_back(claim, is_over=False)
            pauses.append(max(left, UNREADY_SECONDS))
        if not self._outcomes.is_awaited(claim.ref.uid):
            left = claim.early_since + self._seconds - self._clock.monotonic()
            if left <= 0:
                self._begin_giving_back(claim, is_over=True)
            pauses.append(max(left, UNREADY_SECONDS))
        return min(pauses, default=None)

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
        if not is_over and self.fate(ref) in {ClaimFate.HERE, ClaimFate.UNKNOWN}:
            return
        left = str(self._node.removal.remove_unfinished(ref.uid, patience=UNDO_SECONDS))
        self._allowance.waste(ref.namespace, [e.gpu for e in entries])
        self._acted(Action.RETURNED)
        why = "no pod came for it in time" if is_over else "it is not to be used here"
        self._end(claim, AnswerState.EXPIRED, why)
        if claim.is_overdue:
            self._outcomes.statuses.withdraw(ref)
        _log.info("given back: %s", why, extra=about(ref, error=left))

    # -- overdue

    def _overdue(self, claim: _Claim) -> float | None:
        """Publish once that kubelet has not asked for slices that are made; seconds until due.

        A pod is bound right after its claim is allocated, and kubelet asks milliseconds later. If
        kubelet failed to, it tries again only after 60 to 90 s, and only this node notices. While
        kubelet asks for other claims, it may still ask for this one.
        """
        since = claim.whole_since
        if since is None or claim.is_overdue:
            return None
        asked = max(since, self._outcomes.answered_at) + OVERDUE_SECONDS
        left = min(asked, since + LONGEST_OVERDUE_SECONDS) - self._clock.monotonic()
        if left > 0:
            return left
        claim.is_overdue = True
        self._outcomes.statuses.show(claim.ref, overdue=True)
        return None

    # -- made

    def _begin(self, claim: _Claim) -> float | None:
        """Begin to make a claim's slices; returns seconds until the next attempt, or None."""
        ref, units = claim.ref, self._units(claim)
        uuids = {u.uuid for u in units}
        awaited = self._outcomes.is_awaited(ref.uid)
        if awaited and any(e.state in HELD for e in self._journal.of_claim(ref.uid)):
            self._outcomes.made_early(ref)
        is_time = claim.not_before <= self._clock.monotonic()
        if not (uuids and is_time and self._allowance.is_left(ref.namespace, uuids)):
            if awaited and units:
                return EARLY_AGAIN_SECONDS
            self._end(claim, AnswerState.REFUSED, _REFUSED)
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
                self._failed(claim, error)
                self._allowance.waste(ref.namespace, uuids)
            else:
                claim.not_before = self._clock.monotonic() + EARLY_AGAIN_SECONDS
            self._acted(Action.REFUSED)
            _log.info("not made early", extra=about(ref, error=str(error)))
        except Exception as error:  # noqa: BLE001 - kubelet is told by Prepare
            self._acted(Action.REFUSED)
            _log.exception("not made early", extra=about(ref))
            self._failed(claim, PluginError(f"internal error (see the log): {error!r}"))
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
        if claim.reserved is None and not self._outcomes.is_awaited(claim.ref.uid):
            return work()
        patience = AWAITED_SECONDS if claim.reserved is None else RESERVED_SECONDS
        end = self._clock.monotonic() + patience
        return patiently(work, end=end, longest=UNDO_SECONDS, clock=self._clock)

    def _failed(self, claim: _Claim, error: PluginError) -> None:
        if not self._end(claim, AnswerState.FAILED, str(error)):
            self._outcomes.not_made_early(claim.ref, error)

    def _close(self, claim: _Claim, wish: int) -> None:
        """Close a wish; a newer one stays open."""
        with self._lock:
            claim.not_before = 0.0
            if claim.wishes == wish:
                claim.open = False

    def _made_early(self, uid: str) -> tuple[Entry, ...]:
        """The claim's entries if all were made early, so that kubelet knows none; else none."""
        entries = self._journal.of_claim(uid)
        return entries if all(e.early for e in entries) else ()

    def _units(self, claim: _Claim) -> list[GpuUnit]:
        """The GPUs of the claim's slices; none if nothing can be made early for it.

        That is so if kubelet was told of the claim, if a GPU is not known, and for reserved shares
        of slices: a reservation does not say how large they are.
        """
        if any(e.state in HELD for e in self._journal.of_claim(claim.ref.uid)):
            return []
        found: dict[str, GpuUnit] = {}
        for name in claim.devices:
            try:
                device = parse_device(name)
                if isinstance(device, MigDevice):
                    if device.shared and claim.reserved is not None:
                        return []
                    unit = self._hardware.named(gpu_name(device.minor))
                    found[unit.uuid] = unit
            except (DeviceNameError, PluginError) as error:
                if self._outcomes.is_awaited(claim.ref.uid):
                    self._failed(claim, DeviceError(f"{name}: {error}"))
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


def _since(before: float | None, now: float, holds: bool) -> float | None:  # noqa: FBT001 - a condition
    """Time since which a condition ``holds``; None if it does not."""
    return (now if before is None else before) if holds else None
