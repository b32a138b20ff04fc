"""One GPU of the node: its lock, what is known of it, and what is offered of it."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from types import TracebackType
from typing import Self

from dra.claims.reasons import NodeReason
from dra.gpu.geometry import Geometry, Occupant
from dra.gpu.inventory import Gpu
from dra.gpu.shares import ShareOffer
from dra.kube.timing import Backoff, Clock, SystemClock
from kubeletplugin import times
from kubeletplugin.nvml.gpus import Card

_MINUTES = 120.0


class FifoLock:
    """First come, first served: a stream of new callers cannot starve one that waits.

    ``on_wait`` hears the seconds that a caller waited who did not get it at once.
    """

    def __init__(self, on_wait: Callable[[float], None] = lambda _: None) -> None:
        self._on_wait = on_wait
        self._lock = threading.Lock()
        self._held = self._looking = False
        self._waiting: deque[threading.Event] = deque()

    @property
    def is_held(self) -> bool:
        """True if somebody has it now."""
        return self._held

    @property
    def is_worked_under(self) -> bool:
        """True if somebody has it now who did not take it by :meth:`if_free`."""
        return self._held and not self._looking

    def enter(self, timeout: float | None) -> bool:
        """Take the lock within ``timeout`` seconds, None for ever; if True, ``leave`` it later."""
        with self._lock:
            if not self._held:
                self._held = True
                return True
            turn = threading.Event()
            self._waiting.append(turn)
        began = time.monotonic()
        got = turn.wait(timeout)
        self._on_wait(time.monotonic() - began)
        if got:
            return True
        with self._lock:
            if turn.is_set():
                return True  # handed over at the last moment
            self._waiting.remove(turn)
            return False

    def try_enter(self) -> bool:
        """Take the lock if nobody holds it; whoever gets True calls ``leave``."""
        with self._lock:
            taken = not self._held
            self._held = True
            return taken

    @contextmanager
    def if_free(self) -> Iterator[bool]:
        """Hold the lock, for a look, if nobody else does; False, without it, if somebody does."""
        taken = self.try_enter()
        if taken:
            self._looking = True
        try:
            yield taken
        finally:
            if taken:
                self._looking = False
                self.leave()

    def leave(self) -> None:
        """Hand the lock to whoever has waited longest."""
        with self._lock:
            if self._waiting:
                self._waiting.popleft().set()
            else:
                self._held = False

    def __enter__(self) -> Self:
        self.enter(None)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.leave()


@dataclass(frozen=True, slots=True)
class Conflict:
    """Reason for which no GPU of the node is offered.

    ``frozen``: nothing may be destroyed either. ``passing``: the conflict ends by itself.
    """

    reason: NodeReason
    problem: str
    frozen: bool = False
    passing: bool = False


@dataclass(frozen=True, slots=True)
class DeclaredLayout:
    """Wish of the node's mode for a GPU that is not cut for claims alone.

    ``slices`` are to stay on it, none for one that is to be whole. ``waits`` says why that is not
    so yet, or cannot be if it ``failed``; nothing new is given out meanwhile.
    """

    name: str
    slices: tuple[Occupant, ...] = ()
    waits: str = ""
    failed: bool = False


@dataclass(slots=True)
class ModeChange:
    """A change of MIG mode that is wanted and has not been seen yet.

    ``again`` says when it is tried again, ``told`` what was said of it last.
    """

    enable: bool
    again: Backoff
    told: str = ""


@dataclass(slots=True)
class _Refusal:
    """Refusals of one profile in a row: the last one's reason, and when it is offered again."""

    why: str = ""
    pause: Backoff = field(
        default_factory=lambda: Backoff(
            first=times.REFUSED_FIRST_SECONDS, limit=times.REFUSED_LONGEST_SECONDS, jitter=0.0
        )
    )


class GpuUnit:
    """One GPU. Whoever changes its instances or its journal entries holds ``lock``.

    Its attributes are values, and may be read by any thread with or without the lock: one that is
    looked at twice is kept meanwhile, as it may be another by then. No method takes ``lock``; those
    about profiles, ``come_back`` and changes of ``released`` need it held.

    Nothing of a profile is lost for good: one refusal may be a mistake, so that what was struck
    off is offered again after seconds, and more seldom only while it is refused again; at once
    after a reset of the GPU.

    Attributes:
        card: NVML's description.
        layout: None where slices are made for claims.
        conflict: no slice is given out here, because of another program or a pause.
        unhealthy: the reason why no slice is made although the GPU answers; empty if one may be.
        released: this program has nothing of the GPU open; says why and what ends that.
        away: the GPU may have lost its instances since the last look: it was lost, or its driver
            or this program did not run.
        wiped: keys of journal entries that were prepared on it when it was seen empty right after
            such a time.
        open_in: programs that have it open, looked for while the driver calls it unusable.
        seen: what was published of it last.
        sharing: several claims may have it whole, while it is not in MIG mode.
        slice_sharing: several claims of shares may have one slice of it, while it is.
        look_wanted: it is to be looked at once nobody works on it.
        read_back: keys of entries whose slices were made or are gone since the last look, which
            NVML has said when that was done.
    """

    def __init__(
        self,
        number: int,
        card: Card,
        *,
        pcie_root: str = "",
        lock: FifoLock | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.number = number
        self.uuid = card.uuid
        self.name = f"gpu-{number}"
        self.pcie_root = pcie_root
        self.lock = lock or FifoLock()
        self.card = card
        self.layout: DeclaredLayout | None = None
        self.conflict: Conflict | None = None
        self.unhealthy = ""
        self.released = ""
        self.away = True
        self.wiped: set[tuple[str, str]] = set()
        self.open_in: tuple[str, ...] = ()
        self.seen: Gpu | None = None
        self.sharing: ShareOffer | None = None
        self.slice_sharing: ShareOffer | None = None
        self.look_wanted = False
        self.read_back: set[tuple[str, str]] = set()
        self.mode_change: ModeChange | None = None
        self._clock = clock or SystemClock()
        self._refusals: dict[int, _Refusal] = {}
        self._multiprocessors: dict[int, int] = {}

    def __str__(self) -> str:
        return f"{self.name} ({self.uuid})"

    @property
    def geometry(self) -> Geometry | None:
        """Profiles that are offered; None without MIG mode.

        Without those that could not be delivered as advertised, and without those that a layout
        does not have.
        """
        offered, layout = self.card.geometry, self.layout
        if offered is None:
            return None
        if self._refusals or self._multiprocessors:
            offered = Geometry(
                tuple(
                    replace(p, multiprocessors=self._multiprocessors.get(p.id, p.multiprocessors))
                    for p in offered.profiles
                    if not self.struck(p.id)
                )
            )
        if layout is not None and layout.slices and not layout.waits:
            return _only(offered, layout.slices)
        return offered

    @property
    def problem(self) -> tuple[str, str]:
        """Reason and words for which the driver has nothing new given out here; or both empty."""
        return self.card.trouble(self.name)

    @property
    def unwell(self) -> str:
        """Words for which nothing new is given out here for the GPU's own sake; empty if none."""
        return self.problem[1] or self.unhealthy

    def come_back(self, wiped: Iterable[tuple[str, str]]) -> None:
        """The GPU is seen after it was away, without ``wiped``: all its profiles are offered."""
        self._refusals.clear()
        self._multiprocessors.clear()
        self.wiped = set(wiped)
        self.away = False

    def forget_wiped(self, key: tuple[str, str]) -> None:
        """Forget a wiped entry: the journal says now what became of it."""
        self.wiped.discard(key)

    def strike(self, profile_id: int, why: str, *, multiprocessors: int = 0) -> None:
        """Take note that a slice of the profile could not be had as advertised, and ``why``.

        It is offered with ``multiprocessors`` from now on; with 0 it is not offered for a while.
        """
        if multiprocessors:
            self._multiprocessors[profile_id] = multiprocessors
            return
        refusal = self._refusals.setdefault(profile_id, _Refusal())
        refusal.why = why
        refusal.pause.fail(self._clock.monotonic())

    def delivered(self, profile_id: int) -> None:
        """Take note that a slice of the profile was made: the next refusal is a first one again."""
        self._refusals.pop(profile_id, None)

    def struck(self, profile_id: int) -> str:
        """Text with reason and time for which a profile is not offered; empty if it is offered."""
        refusal = self._refusals.get(profile_id)
        seconds = refusal.pause.left(self._clock.monotonic()) if refusal else 0.0
        if refusal is None or not seconds:
            return ""
        minutes, least = round(seconds / 60), max(1, round(seconds))
        pause = f"{minutes} min" if seconds > _MINUTES else f"{least} s"
        return f"{refusal.why}; it is tried again in {pause}"

    def refused_once(self, profile_id: int) -> bool:
        """True if a profile was refused, and not again since: that may have been a mistake."""
        refusal = self._refusals.get(profile_id)
        return refusal is not None and refusal.pause.failures == 1


@lru_cache(maxsize=64)
def _only(geometry: Geometry, slices: tuple[Occupant, ...]) -> Geometry:
    """Geometry with these slices only; cached, as it is asked for all the time."""
    return geometry.only(slices)
