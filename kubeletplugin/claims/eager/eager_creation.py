"""Slices made as soon as their claims are allocated or reserved here, given back if no pod comes.

What kubelet asks for goes first: a slice is made ahead only on a GPU on which nobody works, one at
a time. Such a slice is recorded as one that a Prepare has made and not told of yet, so that a
Prepare finds it, a process that is killed leaves nothing behind that is not on record, and nothing
that fails here is anybody's answer: Prepare tries again.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from dra.gpu.inventory import AnswerState, ClaimRef
from dra.gpu.names import DeviceNameError, MigDevice, gpu_name, parse_device
from dra.kube.loop import Loop
from dra.kube.timing import Clock, SystemClock
from kubeletplugin.claims.claim_tasks import ClaimTasks
from kubeletplugin.claims.eager.allowance import Allowance
from kubeletplugin.claims.eager.overdue import OverdueSlices
from kubeletplugin.claims.eager.reservations import Reservations
from kubeletplugin.claims.ending.claim_fate import ClaimFate
from kubeletplugin.claims.prepare.patience import patiently
from kubeletplugin.claims.prepare.prepare import Preparer
from kubeletplugin.claims.prepare.rollback import Rollback
from kubeletplugin.errors import DeviceError, PluginError, StartingError
from kubeletplugin.gpus.gpuunit import GpuUnit
from kubeletplugin.gpus.hardware import Hardware
from kubeletplugin.journal.entries import HELD, Entry
from kubeletplugin.journal.journal import Journal
from kubeletplugin.telemetry.logfields import about
from kubeletplugin.telemetry.observer import Action, NodeObserver
from kubeletplugin.telemetry.readiness import Readiness

_log = logging.getLogger(__name__)
_BUSY_SECONDS = 0.05
_UNREADY_SECONDS = 0.5
_WAITING_SECONDS = 1.0
_PATIENCE = 2.0
_AWAITED_PATIENCE = 8.0
_RESERVED_PATIENCE = 0.5
_GIVE_BACK_NAME = "give back"
_REFUSED = (
    "nothing is made ahead for it: it is a share of a slice, too many slices were made for nothing "
    "for its namespace or GPU lately, or the GPU is not known"
)


@dataclass(frozen=True, slots=True, eq=False)
class _Wish:
    """Devices of a claim to be made; each is another, also of the same devices."""

    ref: ClaimRef
    devices: tuple[str, ...]


class EagerCreation:
    """One thread that decides, and a task of each claim that is worked on. Thread-safe.

    ``seconds`` is how long a slice waits for its pod. ``fate`` asks the API server for a claim.
    ``on_made`` hears what was made, and ``on_failure`` what could not be, in the claim's task or
    the thread that decides; ``on_end``, in the thread that calls ``expect``, of claims of which
    nothing is expected here any more. For claims that are ``awaited`` (by UID) somebody waits for
    one of the first two: they are tried for longer, and kept without a limit. ``reservations``
    hears what comes of claims that are not allocated yet, ``overdue`` is looked at by its thread.
    """

    def __init__(  # noqa: PLR0913 - what it works with
        self,
        hardware: Hardware,
        journal: Journal,
        tasks: ClaimTasks,
        *,
        preparer: Preparer,
        rollback: Rollback,
        readiness: Readiness,
        fate: Callable[[ClaimRef], ClaimFate],
        seconds: float,
        reservations: Reservations,
        overdue: OverdueSlices,
        on_made: Callable[[ClaimRef], None] = lambda _: None,
        on_failure: Callable[[ClaimRef, PluginError], None] = lambda _ref, _error: None,
        awaited: Callable[[str], bool] = lambda _: False,
        on_end: Callable[[ClaimRef], None] = lambda _: None,
        allowance: Allowance | None = None,
        observer: NodeObserver | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._hardware = hardware
        self._journal = journal
        self._tasks = tasks
        self._preparer = preparer
        self._rollback = rollback
        self._readiness = readiness
        self._fate = fate
        self._seconds = seconds
        self._reservations = reservations
        self._overdue = overdue
        self._on_made = on_made
        self._on_failure = on_failure
        self._awaited = awaited
        self._on_end = on_end
        self._clock = clock or SystemClock()
        self._allowance = allowance or Allowance(self._clock)
        self._observer = observer or NodeObserver()
        self._lock = threading.Lock()
        self._expected: dict[str, tuple[str, ...]] = {}
        self._to_make: dict[str, _Wish] = {}
        self._doubted: dict[str, ClaimRef] = {}
        self._since: dict[str, float] = {}
        self._busy: set[str] = set()
        self._not_before: dict[str, float] = {}
        self.thread = Loop("eager creation", self._turn, clock=clock)

    def start(self) -> None:
        """Start the thread."""
        self.thread.start()

    def stop(self) -> None:
        """End the thread; what is under way is finished by its task."""
        self.thread.stop()
        self.thread.join()

    def expect(self, ref: ClaimRef, devices: tuple[str, ...], *, again: bool = False) -> None:
        """Have the slices among ``devices`` made for a claim; with none, those made given back.

        With the same as before it does nothing, so that what was given back is not made once more,
        unless ``again`` says that nobody was told what came of it.
        """
        with self._lock:
            is_known = devices == self._expected.get(ref.uid)
            if devices and is_known and not (again and ref.uid not in self._to_make):
                return
            self._to_make.pop(ref.uid, None)
            if devices:
                self._expected[ref.uid] = devices
                self._to_make[ref.uid] = _Wish(ref, devices)
            else:
                self._expected.pop(ref.uid, None)
                self._doubted[ref.uid] = ref
        if not devices:
            self._on_end(ref)
        self.thread.notify()

    def doubt(self, ref: ClaimRef) -> None:
        """Look again whether a slice that was made ahead is still needed. Waits for nothing."""
        with self._lock:
            self._doubted[ref.uid] = ref
        self.thread.notify()

    def _turn(self) -> float | None:
        if not self._readiness.is_ready or self._journal.rebuild:
            return _UNREADY_SECONDS
        pauses = [self._give_back_doubted(), self._give_back_forgotten(), self._make()]
        pauses.append(self._overdue.look())
        return min((p for p in pauses if p is not None), default=None)

    def _give_back_doubted(self) -> float | None:
        with self._lock:
            doubted = [*self._doubted.values()]
        for ref in doubted:
            with self._lock:
                self._doubted.pop(ref.uid, None)
            if not self._begin_giving_back(ref, is_over=False):
                with self._lock:
                    self._doubted.setdefault(ref.uid, ref)
        with self._lock:
            return _BUSY_SECONDS if self._doubted else None

    def _give_back_forgotten(self) -> float | None:
        """Give back what has waited too long for its pod; seconds until the next will have."""
        now = self._clock.monotonic()
        ahead = {e.claim.uid: e.claim for e in self._journal.entries() if e.early}
        self._since = {uid: self._since.get(uid, now) for uid in ahead}
        pauses = []
        for uid, since in self._since.items():
            left = since + self._seconds - now
            reserved = self._reservations.seconds_left(uid)
            if reserved is not None:
                if reserved <= 0:
                    self._begin_giving_back(ahead[uid], is_over=False)
                pauses.append(max(reserved, _UNREADY_SECONDS))
            if self._awaited(uid):
                continue
            if left <= 0:
                self._begin_giving_back(ahead[uid], is_over=True)
            pauses.append(max(left, _UNREADY_SECONDS))
        return min(pauses, default=None)

    def _begin_giving_back(self, ref: ClaimRef, *, is_over: bool) -> bool:
        if not self._made_ahead(ref.uid) and self._tasks.idle(ref.uid):
            return True
        work = partial(self._give_back, ref, is_over=is_over)
        return self._tasks.begin(ref.uid, _GIVE_BACK_NAME, work) is not None

    def _give_back(self, ref: ClaimRef, *, is_over: bool) -> None:
        """Remove what was made ahead for a claim; as its only task, so that it is not in use."""
        entries = self._made_ahead(ref.uid)
        if not entries:
            return
        if not is_over and self._fate(ref) in {ClaimFate.HERE, ClaimFate.UNKNOWN}:
            return
        left = str(self._rollback.remove_unfinished(ref.uid, patience=_PATIENCE))
        self._allowance.waste(ref.namespace, [e.gpu for e in entries])
        self._observer.acted(Action.RETURNED)
        why = "no pod came for it in time" if is_over else "it is not to be used here"
        self._reservations.end(ref, AnswerState.EXPIRED, why)
        self._overdue.given_back(ref)
        _log.info("given back: %s", why, extra=about(ref, error=left))

    def _make(self) -> float | None:
        """Begin what can be made now; seconds until what is in the way may have gone."""
        with self._lock:
            waiting = [*self._to_make.values()]
        pause = None
        for wish in waiting:
            ref, units = wish.ref, self._units(wish)
            uuids = {u.uuid for u in units}
            if self._is_told(ref) and self._awaited(ref.uid):
                self._on_made(ref)
            if not self._may_be_made(wish, uuids):
                if not self._awaited(ref.uid) or not units:
                    self._reservations.end(ref, AnswerState.REFUSED, _REFUSED)
                    self._fulfilled(wish)
                else:
                    pause = _WAITING_SECONDS
                continue
            with self._lock:
                if uuids & self._busy:
                    continue  # whose end begins the next turn
                self._busy |= uuids
            work = partial(self._make_one, wish, uuids)
            is_free = not any(u.lock.is_held for u in units)
            if not is_free or not self._tasks.begin(ref.uid, "make ahead", work):
                pause = _BUSY_SECONDS
                with self._lock:
                    self._busy -= uuids
        return pause

    def _may_be_made(self, wish: _Wish, uuids: set[str]) -> bool:
        """True if slices of these GPUs are to be made for a wish, as far as is known, and now."""
        now, uid = self._clock.monotonic(), wish.ref.uid
        is_time = self._not_before.get(uid, now) <= now
        return bool(uuids) and is_time and self._allowance.is_left(wish.ref.namespace, uuids)

    def _make_one(self, wish: _Wish, uuids: set[str]) -> None:
        ref, done = wish.ref, True
        try:
            done = self._attempt(ref)
        except PluginError as error:
            done = not (isinstance(error, StartingError) and self._awaited(ref.uid))
            if done:
                self._on_failure(ref, error)
                self._allowance.waste(ref.namespace, uuids)
            else:
                self._not_before[ref.uid] = self._clock.monotonic() + _WAITING_SECONDS
            self._observer.acted(Action.REFUSED)
            _log.info("not made ahead", extra=about(ref, error=str(error)))
        except Exception as error:  # noqa: BLE001 - kubelet is told by Prepare
            self._observer.acted(Action.REFUSED)
            _log.exception("not made ahead", extra=about(ref))
            self._on_failure(ref, PluginError(f"internal error (see the log): {error!r}"))
        else:
            if done and self._made_ahead(ref.uid):
                self._observer.acted(Action.AHEAD)
                _log.info("made ahead", extra=about(ref))
                self._on_made(ref)
        finally:
            if done:
                self._fulfilled(wish)
            with self._lock:
                self._busy -= uuids
                if ref.uid not in self._expected:
                    self._doubted[ref.uid] = ref
            self.thread.notify()

    def _attempt(self, ref: ClaimRef) -> bool:
        """Make a claim's slices; what passes is waited for if nobody else tries again."""
        is_reserved = self._reservations.seconds_left(ref.uid) is not None
        if not is_reserved and not self._awaited(ref.uid):
            return self._preparer.make_ahead(ref)
        patience = _RESERVED_PATIENCE if is_reserved else _AWAITED_PATIENCE
        return patiently(
            partial(self._preparer.make_ahead, ref),
            end=self._clock.monotonic() + patience,
            longest=_PATIENCE,
            clock=self._clock,
        )

    def _fulfilled(self, wish: _Wish) -> None:
        """Do no more for a wish; one that has replaced it meanwhile stays."""
        with self._lock:
            self._not_before.pop(wish.ref.uid, None)
            if self._to_make.get(wish.ref.uid) is wish:
                del self._to_make[wish.ref.uid]

    def _made_ahead(self, uid: str) -> tuple[Entry, ...]:
        """The claim's entries, if all of them were made ahead; kubelet knows of none then."""
        entries = self._journal.of_claim(uid)
        return entries if all(e.early for e in entries) else ()

    def _is_told(self, ref: ClaimRef) -> bool:
        """True if kubelet was told of slices of the claim."""
        return any(e.state in HELD for e in self._journal.of_claim(ref.uid))

    def _units(self, wish: _Wish) -> list[GpuUnit]:
        """The GPUs of which the claim was given slices; none if kubelet was told of them.

        None either if it is reserved shares of slices: a reservation does not say how large.
        """
        is_reserved = self._reservations.seconds_left(wish.ref.uid) is not None
        if self._is_told(wish.ref):
            return []
        found: dict[str, GpuUnit] = {}
        for name in wish.devices:
            try:
                device = parse_device(name)
                if isinstance(device, MigDevice):
                    if device.shared and is_reserved:
                        return []
                    unit = self._hardware.named(gpu_name(device.minor))
                    found[unit.uuid] = unit
            except (DeviceNameError, PluginError) as error:
                if self._awaited(wish.ref.uid):
                    self._on_failure(wish.ref, DeviceError(f"{name}: {error}"))
                return []
        return [*found.values()]
