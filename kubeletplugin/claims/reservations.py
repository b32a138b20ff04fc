"""Reservations of this node: slices made for claims that are to be allocated here once they are.

The controller writes them into ``spec`` of the MigNode, the answers stand in its ``status``. Of a
claim that is reserved here the slices are made and kept as those of a claim that is allocated
here; the time for that is counted here, from the moment at which the reservation is first seen. A
restart counts anew: whoever reserved gives up earlier by its own clock, or is gone.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from api.mignode import MOST_RESERVATIONS
from dra.claims.allocation import AllocatedDevice
from dra.gpu.inventory import Answer, AnswerState, ClaimRef, Reservation
from dra.gpu.names import DeviceNameError, gpu_name, parse_device
from kubeletplugin.claims.context import Context
from kubeletplugin.claims.lookup import ClaimFate, ClaimReader
from kubeletplugin.errors import DeviceError, PluginError
from kubeletplugin.gpus.hardware import Hardware
from kubeletplugin.journal.entries import HELD, Entry, State
from kubeletplugin.telemetry.reports import about

_log = logging.getLogger(__name__)
_MESSAGE = 512
_MADE = {State.CI_CREATED} | HELD


@dataclass(slots=True)
class _Known:
    reservation: Reservation
    until: float
    is_allocated: bool = False
    state: AnswerState | None = None
    message: str = ""


class Reservations:
    """Present reservations by claim, and what came of them. Thread-safe.

    ``expect`` has slices made, or what was made given back where there are none;
    ``on_change`` is called when an answer may have changed. Both without a lock held.
    """

    def __init__(
        self,
        context: Context,
        hardware: Hardware,
        claims: ClaimReader,
        *,
        expect: Callable[[ClaimRef, tuple[str, ...]], None],
        on_change: Callable[[], None],
    ) -> None:
        self._hardware = hardware
        self._journal = context.journal
        self._clock = context.clock
        self._claims = claims
        self._expect = expect
        self._on_change = on_change
        self._lock = threading.Lock()
        self._known: dict[str, _Known] = {}

    def take(self, asked: Iterable[Reservation]) -> None:
        """Take all present reservations; the last one of a claim counts."""
        now = self._clock.monotonic()
        wanted = {r.claim.uid: r for r in [*asked][:MOST_RESERVATIONS]}
        with self._lock:
            before = self._known
            self._known = {
                uid: known
                if (known := before.get(uid)) and known.reservation.id == r.id
                else _Known(r, now + r.seconds)
                for uid, r in wanted.items()
            }
            ended = [k for uid, k in before.items() if self._known.get(uid) is not k]
            begun = [k.reservation for uid, k in self._known.items() if before.get(uid) is not k]
        for each in ended:
            if not each.is_allocated:
                self._expect(each.reservation.claim, ())
        for reservation in begun:
            _log.info("reserved", extra=about(reservation.claim, detail=reservation.id))
            self._expect(reservation.claim, tuple(d.device for d in reservation.devices))
        if ended or begun:
            self._on_change()

    def heed(self, ref: ClaimRef, devices: tuple[str, ...]) -> None:
        """Claim ``ref`` has these devices here by its allocation; with none, it may be reserved."""
        with self._lock:
            known = self._known.get(ref.uid)
            if known is not None:
                known.is_allocated = bool(devices)
        if devices or not self._holds(ref):
            self._expect(ref, devices)

    def fate(self, ref: ClaimRef) -> ClaimFate:
        """``HERE`` while the claim is reserved here; otherwise the API server is asked for it."""
        return ClaimFate.HERE if self._holds(ref) else self._claims.fate(ref)

    def _holds(self, ref: ClaimRef) -> bool:
        with self._lock:
            known = self._known.get(ref.uid)
            return known is not None and known.state is None and self._left(known) > 0

    def seconds_left(self, uid: str) -> float | None:
        """Time for which the slices of a claim still wait; None if it is not reserved."""
        with self._lock:
            known = self._known.get(uid)
            return None if known is None else self._left(known)

    def devices(self, ref: ClaimRef) -> tuple[AllocatedDevice, ...]:
        """Devices as they will be allocated to a claim; none if it is not reserved here.

        Raises:
            DeviceError: a GPU of that name is another by now.
        """
        with self._lock:
            known = self._known.get(ref.uid)
            reserved = () if known is None or known.state else known.reservation.devices
        for each in reserved:
            uuid = self._gpu_of(each.device)
            if uuid != each.gpu:
                raise DeviceError(f"{each.device} is of GPU {uuid} now, not of {each.gpu}")
        return tuple(
            AllocatedDevice(each.request, self._claims.driver, self._claims.pool, each.device)
            for each in reserved
        )

    def end(self, ref: ClaimRef, state: AnswerState, why: str) -> bool:
        """Answer that nothing comes of the claim's reservation; False if it has none."""
        with self._lock:
            known = self._known.get(ref.uid)
            if known is None:
                return False
            known.state = known.state or state
            known.message = known.message or why[:_MESSAGE]
        self._on_change()
        return True

    def answers(self) -> tuple[Answer, ...]:
        """Answers as they are to be published; none as long as a reservation is worked on."""
        with self._lock:
            known = [*self._known.values()]
        found = []
        for each in known:
            state = each.state or (AnswerState.MADE if self._is_made(each.reservation) else None)
            if state is not None:
                found.append(Answer(each.reservation.id, state, each.message))
        return tuple(found)

    def _is_made(self, reservation: Reservation) -> bool:
        entries: dict[str, Entry] = {
            e.device: e for e in self._journal.of_claim(reservation.claim.uid)
        }
        return all(
            (entry := entries.get(d.device)) is not None
            and entry.state in _MADE
            and entry.gpu == d.gpu
            for d in reservation.devices
        )

    def _gpu_of(self, device: str) -> str:
        try:
            return self._hardware.named(gpu_name(parse_device(device).minor)).uuid
        except (DeviceNameError, PluginError) as error:
            raise DeviceError(str(error)) from error

    def _left(self, known: _Known) -> float:
        return known.until - self._clock.monotonic()
