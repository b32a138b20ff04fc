"""One GPU of the node: its lock, what is known of it, and who may change that."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache
from typing import Any

from dra.gpu.geometry import Geometry, Occupant
from dra.gpu.inventory import Gpu
from dra.gpu.shares import ShareOffer
from dra.kube.timing import Clock, RetrySchedule, SystemClock
from kubeletplugin.gpus.coexistence.other_managers import Conflict
from kubeletplugin.gpus.known_gpu import DeclaredLayout, KnownGpu
from kubeletplugin.gpus.locks import FifoLock
from kubeletplugin.gpus.offers import Offers
from kubeletplugin.nvml.gpus import Card

MODE_FIRST_SECONDS = 10.0
"""First pause before a change of MIG mode that did not work is tried again."""
_MODE_LONGEST_SECONDS = 600.0


class ModeChange:
    """A change of MIG mode that is wanted and has not been seen yet.

    ``told``: what was said of it last.
    """

    def __init__(self, clock: Clock, *, enable: bool) -> None:
        self.enable = enable
        self.again = RetrySchedule(clock, first=MODE_FIRST_SECONDS, longest=_MODE_LONGEST_SECONDS)
        self.told = ""


class GpuUnit:
    """One GPU. Whoever changes its instances or its journal entries holds ``lock``.

    ``known`` may be read by any thread, with or without the lock: it is a value. Each method that
    changes it names its one caller (``For ...``); none takes ``lock``.
    """

    def __init__(
        self,
        number: int,
        card: Card,
        *,
        pcie_root: str,
        lock: FifoLock | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.lock = lock or FifoLock()
        self.uuid = card.uuid
        self.name = f"gpu-{number}"
        self.mode_change: ModeChange | None = None
        """For ``MigMode`` alone."""
        self._offers = Offers(clock or SystemClock())
        self._mutex = threading.Lock()
        self._known = KnownGpu(number, card, pcie_root, geometry=card.geometry)

    @property
    def known(self) -> KnownGpu:
        """Knowledge about the GPU as of now."""
        known = self._known
        offered = self._offers.of(known.card.geometry)
        layout = known.layout
        if offered is not None and layout is not None and layout.slices and not layout.waits:
            offered = _only(offered, layout.slices)
        return known if offered is known.geometry else replace(known, geometry=offered)

    @property
    def seen(self) -> Gpu | None:
        """Published state of the GPU: ``known.seen``, at less cost than ``known``."""
        return self._known.seen

    def set_card(self, card: Card) -> None:
        """Take NVML's new description. For ``Hardware.discover`` alone."""
        self._change(card=card, geometry=card.geometry)

    def set_openers(self, names: tuple[str, ...]) -> None:
        """Take note of programs that have the GPU open. For ``Hardware`` alone."""
        self._change(open_in=names)

    def share(self, whole: ShareOffer | None, *, slices: ShareOffer | None) -> None:
        """Let several claims have the GPU whole, or one of its slices. For ``Hardware`` alone."""
        self._change(sharing=whole, slice_sharing=slices)

    def set_conflict(self, conflict: Conflict | None) -> None:
        """Give nothing out here for a reason, or for none any more. For ``Hardware`` alone."""
        self._change(conflict=conflict)

    def declare(self, layout: DeclaredLayout | None) -> bool:
        """Offer these slices and no others; True if that is new. For ``ReadySlices`` alone."""
        with self._mutex:
            changed = self._known.layout != layout
            self._known = replace(self._known, layout=layout)
            return changed

    def show(self, gpu: Gpu) -> Gpu | None:
        """Keep what is published from now on; returns what was before. For ``Hardware`` alone."""
        with self._mutex:
            before = self._known.seen
            if before != gpu:
                self._known = replace(self._known, seen=gpu)
            return before

    def leave(self) -> None:
        """Expect the GPU to be empty when it is seen next. For ``Hardware`` alone."""
        self._change(away=True)

    def come_back(self, wiped: Iterable[tuple[str, str]]) -> None:
        """The GPU is seen after it was away, without ``wiped``: all its profiles are offered again.

        For ``Hardware`` alone, with the lock.
        """
        self._offers.reset()
        self._change(away=False, wiped=frozenset(wiped))

    def forget_wiped(self, key: tuple[str, str]) -> None:
        """Forget a wiped entry: the journal says now what became of it. For ``Recovery`` alone."""
        with self._mutex:
            self._known = replace(self._known, wiped=self._known.wiped - {key})

    def set_unhealthy(self, why: str) -> None:
        """Make no slice here because of ``why``; empty ends that. For ``HealthMonitor`` alone."""
        self._change(unhealthy=why)

    def release(self, why: str) -> None:
        """Have nothing of the GPU open from now on. For ``Releasing`` alone, with the lock."""
        self._change(released=why)

    def hold(self) -> None:
        """Go on as before, with nothing closed. For ``Releasing`` alone, with the lock."""
        self._change(released="")

    def reopen(self) -> None:
        """Have the GPU open again, which may have been reset. For ``Releasing`` alone."""
        self._change(released="", away=True)

    def strike(self, profile_id: int, why: str, *, multiprocessors: int = 0) -> None:
        """Offer a profile as it can be had, or not for a while (``Offers.learn``).

        For ``Slices`` alone, with the lock.
        """
        self._offers.learn(profile_id, why, multiprocessors=multiprocessors)

    def delivered(self, profile_id: int) -> None:
        """Forget refusals of a profile of which a slice was made. For ``Slices`` alone."""
        self._offers.delivered(profile_id)

    def struck(self, profile_id: int) -> str:
        """Text with reason and time for which a profile is not offered; empty if it is offered."""
        return self._offers.struck(profile_id)

    def refused_once(self, profile_id: int) -> bool:
        """True if a profile was refused, and not again since: that may have been a mistake."""
        return self._offers.refused_once(profile_id)

    def _change(self, **fields: Any) -> None:
        with self._mutex:
            self._known = replace(self._known, **fields)


@lru_cache(maxsize=64)
def _only(geometry: Geometry, slices: tuple[Occupant, ...]) -> Geometry:
    """Geometry with these slices only; cached, as it is asked for all the time."""
    return geometry.only(slices)
