"""One GPU of the node: its lock, its known state, and the profiles that it offers."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from types import TracebackType
from typing import Self

from dra.claims.reasons import NodeReason
from dra.gpu.geometry import Geometry, Occupant
from dra.gpu.inventory import Gpu
from dra.kube.timing import Backoff, Clock, SystemClock
from kubeletplugin import times
from kubeletplugin.nvml.gpus import Card

_MINUTES = 120.0


class FifoLock:
    """Lock that serves callers in the order in which they come, so that none waits for ever.

    ``on_wait``: called with the seconds of each wait, not where the lock was free.
    """

    def __init__(self, on_wait: Callable[[float], None] = lambda _: None) -> None:
        self._on_wait = on_wait
        self._lock = threading.Lock()
        self._held = self._looking = False
        self._waiting: deque[threading.Event] = deque()

    @property
    def is_held(self) -> bool:
        """True if somebody holds the lock now."""
        return self._held

    @property
    def is_worked_under(self) -> bool:
        """True if somebody holds the lock now who did not take it by :meth:`if_free`."""
        return self._held and not self._looking

    def enter(self, timeout: float | None) -> bool:
        """Take the lock; returns False if that took more than ``timeout`` seconds (None: no limit).

        A caller that gets True calls ``leave`` afterwards.
        """
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
        """Take the lock if nobody holds it; a caller that gets True calls ``leave`` afterwards."""
        with self._lock:
            taken = not self._held
            self._held = True
            return taken

    @contextmanager
    def if_free(self) -> Iterator[bool]:
        """Hold the lock for a look; yields False, without the lock, if somebody else holds it."""
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
        """Give the lock back: to the caller that has waited longest, if any waits."""
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
    """Reason why no GPU of the node is offered.

    ``frozen``: no slice may be destroyed either. ``passing``: the conflict ends by itself.
    """

    reason: NodeReason
    problem: str
    frozen: bool = False
    passing: bool = False


@dataclass(frozen=True, slots=True)
class DeclaredLayout:
    """State that the mode of the node asks of a GPU whose slices are not made for claims.

    ``slices``: the slices that stay on the GPU; empty for a GPU that is to be whole.
    ``waits``: why the GPU is not in that state, empty if it is; nothing new is given out meanwhile.
    ``failed``: the last attempt to reach that state failed, so that ``waits`` says an error.
    """

    name: str
    slices: tuple[Occupant, ...] = ()
    waits: str = ""
    failed: bool = False


@dataclass(slots=True)
class ModeChange:
    """A change of MIG mode that is wanted and has not been seen yet.

    ``again``: pause before the next attempt. ``told``: text of the last report about the change.
    """

    enable: bool
    again: Backoff
    told: str = ""


@dataclass(slots=True)
class _Refusal:
    """Consecutive refusals of one profile.

    ``why``: reason of the last refusal. ``pause``: time for which the profile is not offered.
    """

    why: str = ""
    pause: Backoff = field(
        default_factory=lambda: Backoff(
            first=times.REFUSED_FIRST_SECONDS, limit=times.REFUSED_LONGEST_SECONDS, jitter=0.0
        )
    )


class GpuUnit:
    """One GPU. Whoever changes its instances or its journal entries holds ``lock``.

    Its attributes are values that any thread may read with or without the lock. Another thread may
    replace a value between two reads: a caller that needs it twice keeps the first. No method takes
    ``lock``; the methods about profiles and ``come_back`` need it held, and so do changes of
    ``released``.

    No profile is withdrawn for good, as a refusal may be a mistake. A profile that was refused is
    offered again after seconds, after longer pauses only while it is refused again, and at once
    after a reset of the GPU.

    Attributes:
        card: NVML's description of the GPU.
        layout: state that the node's mode asks for; None where slices are made for claims.
        conflict: reason why no slice is given out here: another program, or a pause.
        held: conflict of this GPU alone, which counts once ``Hardware.set_conflict`` is called.
        foreign: by id of a GPU instance of others, the UUID of its MIG device and who has it.
        unhealthy: reason why no slice is made although the GPU answers; empty if one may be.
        released: text while this program has nothing of the GPU open: why, and what ends that.
        away: the GPU may have lost its instances since the last look: it was lost, or its driver
            or this program did not run.
        wiped: keys of the entries that were prepared on the GPU, if the first look after ``away``
            found no instance on it.
        open_in: programs that have the GPU open; looked for only while the driver calls the GPU
            unusable.
        seen: last description of the GPU that was published.
        shares: number of claims that may have the whole GPU at the same time; counts only without
            MIG mode.
        slice_shares: the same of one slice and claims of shares; counts only in MIG mode.
        look_wanted: a look at the GPU is due once nobody works on it.
        read_back: keys of entries whose slices were made or removed since the last look, and NVML
            has confirmed that.
        mode_change: change of MIG mode that is under way; None if none is.
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
        self.held: Conflict | None = None
        self.foreign: Mapping[int, tuple[str, str]] = {}
        self.unhealthy = ""
        self.released = ""
        self.away = True
        self.wiped: set[tuple[str, str]] = set()
        self.open_in: tuple[str, ...] = ()
        self.seen: Gpu | None = None
        self.shares = 0
        self.slice_shares = 0
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

        Profiles that were refused lately and profiles that the layout does not have are left out.
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
        """Reason and text why the driver has nothing new given out here; both empty if none."""
        return self.card.trouble(self.name)

    @property
    def unwell(self) -> str:
        """Text why this GPU is not fit for anything new; empty if it is fit."""
        return self.problem[1] or self.unhealthy

    def come_back(self, wiped: Iterable[tuple[str, str]]) -> None:
        """Take note that the GPU was seen after it was ``away``, without the slices of ``wiped``.

        All its profiles are offered again.
        """
        self._refusals.clear()
        self._multiprocessors.clear()
        self.wiped = set(wiped)
        self.away = False

    def forget_wiped(self, key: tuple[str, str]) -> None:
        """Forget a wiped entry; the journal now says if its slice is there or lost."""
        self.wiped.discard(key)

    def strike(self, profile_id: int, why: str, *, multiprocessors: int = 0) -> None:
        """Take note that a slice of the profile could not be had as advertised, and ``why``.

        ``multiprocessors``: number with which the profile is offered from now on; with 0 the
        profile is not offered for a while.
        """
        if multiprocessors:
            self._multiprocessors[profile_id] = multiprocessors
            return
        refusal = self._refusals.setdefault(profile_id, _Refusal())
        refusal.why = why
        refusal.pause.fail(self._clock.monotonic())

    def delivered(self, profile_id: int) -> None:
        """Take note that a slice of the profile was made: earlier refusals are forgotten."""
        self._refusals.pop(profile_id, None)

    def struck(self, profile_id: int) -> str:
        """Reason why a profile is not offered, and for how long; empty if it is offered."""
        refusal = self._refusals.get(profile_id)
        seconds = refusal.pause.left(self._clock.monotonic()) if refusal else 0.0
        if refusal is None or not seconds:
            return ""
        minutes, least = round(seconds / 60), max(1, round(seconds))
        pause = f"{minutes} min" if seconds > _MINUTES else f"{least} s"
        return f"{refusal.why}; it is tried again in {pause}"

    def refused_once(self, profile_id: int) -> bool:
        """True if a profile was refused exactly once, which may have been a mistake."""
        refusal = self._refusals.get(profile_id)
        return refusal is not None and refusal.pause.failures == 1


@lru_cache(maxsize=64)
def _only(geometry: Geometry, slices: tuple[Occupant, ...]) -> Geometry:
    """Geometry with these slices only; cached, as it is needed at every look."""
    return geometry.only(slices)
