"""Leaders that follow each other while everything happens: what one sent last may come any time."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from dra.kube.errors import ConflictError, KubeError, UnavailableError
from tests.controller.helpers.desk import Desk
from tests.controller.world.test_any_world import SEEDS, THEIRS, check_rest
from tests.controller.world.world import World
from tests.controller.world.worldchecks import set_quotas

_STALE = ConflictError("stale", status=409)
_SILENCE = UnavailableError("no answer")


class Succession(World):
    """A world in which leaders end with requests on their way, which arrive ``late``."""

    def __init__(self, seed: int) -> None:
        self.late: list[Callable[[], object]] = []
        self.is_fencing = False
        super().__init__(seed, finalizer_at_creation=False, schedulers=THEIRS[seed % 5])

    def act(self) -> None:
        if self.draw.random() < 0.2:
            self.draw.choice((self._succeed, self._arrive, self._arrive))()
            self.check()
        else:
            super().act()

    def end(self) -> None:
        while self.late:
            self._arrive()
        super().end()

    def look(self) -> None:
        if not self.is_fencing:
            super().look()

    def _succeed(self) -> None:
        """The leader ends with any of its requests on their way, and the next one begins."""
        self._leave()
        former = self.bench
        self.desk = Desk()
        self.bench = former.succeeded_by(send=self.desk.send)
        for events in self.told.values():
            events.clear()
        self.list_volumes()
        self.nodes.be_seen_by(self.bench.cluster)
        set_quotas(self.bench, self.quotas)
        self._raise_fence()

    def _raise_fence(self) -> None:
        fence, trouble = self.bench.fence(f"fence {self.draw.random()}"), self.api.refuse
        self.is_fencing = True
        self.api.refuse = lambda _: self._trouble(_STALE, _SILENCE)
        while not fence.stands():
            fence.work()
            self.draw.choice((self._answer, self._answer, self._arrive, self._tell))()
            fence.absorb()
            self.bench.time += 1
        self.is_fencing, self.api.refuse = False, trouble

    def _leave(self) -> None:
        send = self.api.patch

        def patch(*args: Any, **more: Any) -> Any:
            if self.draw.random() < 0.5:
                return send(*args, **more)
            self.late.append(partial(send, *args, **more))
            raise _SILENCE

        self.api.patch = patch  # type: ignore[method-assign]
        self.is_fencing = True  # nobody decides any more
        for job in self.desk.jobs:
            job()
        self.is_fencing = False
        self.api.patch = send  # type: ignore[method-assign]

    def _arrive(self) -> None:
        if self.late:
            request = self.late.pop(self.draw.randrange(len(self.late)))
            with contextlib.suppress(KubeError):
                request()


@pytest.mark.parametrize("seed", range(8 * SEEDS))
def test_nothing_is_given_out_twice_whoever_leads(seed: int) -> None:
    world = Succession(seed)
    for _ in range(250):
        world.act()
    check_rest(world)
