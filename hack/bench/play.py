"""Plays requests on a fleet, and counts what became of them."""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from hack.bench.fleet import Chooser, Device, Fleet


@dataclass(frozen=True, slots=True)
class Ask:
    """Slices of a profile, asked for together; each ``lasts`` so many seconds, None: for ever."""

    at: float
    profile: str
    lasts: float | None
    count: int = 1


Figures = Mapping[str, float]


@dataclass(slots=True)
class Played:
    """Result of a play, of the requests after a warm-up.

    ``asked``, ``placed``: requests; ``slices_asked``, ``slices``: their memory slices. ``waits``:
    by profile, the seconds until requests were placed, until the end of the play for those that
    never were. ``unused``: GPUs without any slice, as a mean over time. ``moves``: of requests for
    one slice that were refused although as much was free, the slices in the way at the least.
    """

    asked: int = 0
    placed: int = 0
    slices_asked: int = 0
    slices: int = 0
    waits: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    unused: float = 0.0
    moves: list[int] = field(default_factory=list)

    @property
    def accepted(self) -> Figures:
        """Accepted requests and memory slices in percent, unused GPUs, moves of a hundred."""
        return {
            "requests": 100 * self.placed / self.asked,
            "slices": 100 * self.slices / self.slices_asked,
            "unused": self.unused,
            "moves": 100 * sum(self.moves) / self.asked,
        }

    @property
    def wait(self) -> Figures:
        """Mean wait, and the 95th percentile of the profile that waits longest."""
        every = [wait for waits in self.waits.values() for wait in waits]
        late = (sorted(waits)[int(0.95 * (len(waits) - 1))] for waits in self.waits.values())
        return {"wait": fmean(every), "worst p95": max(late)}


def play(
    asks: Iterable[Ask], fleet: Fleet, choose: Chooser, *, queues: bool = False, since: float = 0.0
) -> Played:
    """``asks`` in their order; who finds no room waits if it ``queues``, else it goes.

    Figures are of the requests from ``since`` on. Those that wait are tried whenever room is made,
    in their order, each kind until one has none.
    """
    playing = _Play(fleet, choose, since)
    for ask in asks:
        playing.pass_time(ask.at)
        playing.ask(ask, queues=queues)
    if queues:
        playing.pass_time(math.inf)
    return playing.end()


class _Play:
    def __init__(self, fleet: Fleet, choose: Chooser, since: float) -> None:
        self._fleet, self._choose, self._since = fleet, choose, since
        self._played = Played()
        self._ends: list[tuple[float, int, Sequence[Device]]] = []
        self._waiting: list[Ask] = []
        self._begun = 0
        self._now = self._area = 0.0

    def ask(self, ask: Ask, *, queues: bool) -> None:
        if ask.at >= self._since:
            self._played.asked += 1
            self._played.slices_asked += self._slices(ask)
        if self._start(ask):
            return
        if queues:
            self._waiting.append(ask)
        elif ask.count == 1 and ask.at >= self._since:
            moves = self._fleet.in_the_way(ask.profile)
            self._played.moves += [] if moves is None else [moves]

    def pass_time(self, until: float) -> None:
        while self._ends and self._ends[0][0] <= until:
            at, _, devices = heapq.heappop(self._ends)
            self._move_to(at)
            self._fleet.give_back(devices)
            self._retry()
        if until < math.inf:
            self._move_to(until)

    def end(self) -> Played:
        for ask in self._waiting:
            self._played.waits[ask.profile].append(self._now - ask.at)
        span = self._now - self._since
        self._played.unused = self._area / span if span > 0 else float(self._fleet.unused)
        return self._played

    def _start(self, ask: Ask) -> bool:
        devices = self._choose(ask.profile, ask.count)
        if devices is None:
            return False
        self._fleet.take(devices)
        if ask.lasts is not None:
            self._begun += 1
            heapq.heappush(self._ends, (self._now + ask.lasts, self._begun, devices))
        if ask.at >= self._since:
            self._played.placed += 1
            self._played.slices += self._slices(ask)
        self._played.waits[ask.profile].append(self._now - ask.at)
        return True

    def _retry(self) -> None:
        failed = set[tuple[str, int]]()
        still = list[Ask]()
        for ask in self._waiting:
            kind = ask.profile, ask.count
            if kind in failed or not self._start(ask):
                failed.add(kind)
                still.append(ask)
        self._waiting = still

    def _move_to(self, t: float) -> None:
        self._area += self._fleet.unused * max(0.0, t - max(self._now, self._since))
        self._now = max(t, self._now)

    def _slices(self, ask: Ask) -> int:
        return ask.count * self._fleet.size(ask.profile)
