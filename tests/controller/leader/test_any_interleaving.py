"""Writes, answers, watches and other people's changes in any order: no slice is given out twice."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from controller.leader.fence import Fence
from dra.common.resources import RESOURCE_CLAIMS
from dra.gpu.names import MigDevice, parse_device
from dra.kube.errors import ConflictError, InvalidError, KubeError, UnavailableError
from tests.controller.helpers.bench import Bench
from tests.controller.helpers.desk import Desk
from tests.controller.helpers.objects import claim, copied, mignode, node, pod, request
from tests.dra.gpus import A100

PROFILES = ("1g.5gb", "2g.10gb", "3g.20gb", "7g.40gb")
NODES = ("node-a", "node-b", "node-c")
_CHANCE, _OFTEN = 0.1, 0.5
_STALE = ConflictError("stale", status=409)
_NO = InvalidError("no", status=422)
_SILENCE = UnavailableError("no answer")


class Story:
    """A cluster to which everything happens at random; ``seen`` are watch events not yet told."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.desk = Desk()
        self.bench = Bench(send=self.desk.send)
        for name in NODES:
            self.bench.cluster.set_node(node(name))
            self.bench.cluster.set_mignode(mignode(name))
        self.bench.run()
        self.names: list[str] = []
        self.seen: list[Callable[[], None]] = []
        self.bench.api.refuse = lambda _: self._trouble(_STALE, _NO, _SILENCE)
        self.bench.api.lost = self._meanwhile
        stored = self.bench.api.put

        def put(resource: object, obj: dict[str, object]) -> dict[str, object]:
            told = stored(resource, obj)  # type: ignore[arg-type]
            if resource is RESOURCE_CLAIMS:
                self.seen.append(lambda: self.bench.cluster.set_claim(copied(told)))
            return told

        self.bench.api.put = put  # type: ignore[method-assign]

    def act(self) -> None:
        self.draw.choice(self.steps())()
        self.check()

    def steps(self) -> list[Callable[[], None]]:
        """What may happen next; what is named twice happens twice as often."""
        return [
            self._create,
            self._answer,
            self._answer,
            self._tell,
            self._tell,
            self._erase,
            self._delete,
            self._unreserve,
            lambda: self.bench.run(seconds=self.draw.choice((0.0, 0.05, 1.0))),
        ]

    def check(self) -> None:
        """No two claims hold the same memory slice."""
        taken: dict[tuple[str, str, int], str] = {}
        for name in self.names:
            if ("resourceclaims", name) not in self.bench.api.objects:
                continue
            for text in self.bench.devices(name):
                device = parse_device(text)
                assert isinstance(device, MigDevice)
                profile = A100.by_id(device.profile_id)
                assert profile is not None
                for piece in range(device.start, device.start + profile.memory_slices):
                    place = (self.bench.node_of(name), device.gpu, piece)
                    assert place not in taken, f"{name} and {taken[place]} both have {place}"
                    taken[place] = name

    def end(self) -> None:
        """No more trouble: everything comes to rest."""
        self.bench.api.refuse = self.bench.api.lost = lambda _: None
        for _ in range(60):
            self._unreserve()
            self._everything()
            self._bind()
            self.bench.run(seconds=20.0)
            self.check()

    def _bind(self) -> None:
        """kube-scheduler binds all that are allocated."""
        for name in filter(self.bench.devices, self._present()):
            pod_ = self.bench.api.objects.get(("pods", name))
            if pod_ is not None and not pod_["spec"].get("nodeName"):
                self.bench.bind(name, self.bench.node_of(name))

    def _everything(self) -> None:
        while self.desk.jobs or self.seen:
            self.desk.work_off()
            while self.seen:
                self.seen.pop(0)()
            self.bench.run()

    def _trouble(self, *kinds: KubeError) -> KubeError | None:
        return self.draw.choice(kinds) if self.draw.random() < _CHANCE else None

    def _meanwhile(self, _: str) -> KubeError | None:
        """A request was made, and its answer is on the way."""
        if self.draw.random() < _CHANCE:
            self._erase()
        if self.draw.random() < _OFTEN:
            self._tell()
            self._look()
        return self._trouble(_STALE, _SILENCE)

    def _look(self) -> None:
        """Whoever leads takes what was told."""
        self.bench.run()

    def _create(self) -> None:
        name = f"c{len(self.names)}"
        self.names.append(name)
        self.bench.claim(claim(name, request("r", f"mig-{self.draw.choice(PROFILES)}")))
        self.bench.pod(pod(name, name))

    def _answer(self) -> None:
        if self.desk.jobs:
            self.desk.jobs.pop(self.draw.randrange(min(4, len(self.desk.jobs))))()

    def _tell(self) -> None:
        for _ in range(self.draw.randrange(1, 4)):
            if self.seen:
                self.seen.pop(0)()

    def _erase(self) -> None:
        """The scheduler takes an allocation back."""
        held = [n for n in self._present() if self.bench.devices(n)]
        if held:
            obj = copied(self.bench.api.get(RESOURCE_CLAIMS, self.draw.choice(held)))
            obj["status"].pop("reservedFor", None)
            del obj["status"]["allocation"]
            self.bench.api.put(RESOURCE_CLAIMS, obj)

    def _delete(self) -> None:
        pods = [n for n in self.names if ("pods", n) in self.bench.api.objects]
        if pods:
            self.bench.remove_pod(self.draw.choice(pods))

    def _unreserve(self) -> None:
        """What pods that are gone had reserved is free: kube-controller-manager's part."""
        for obj in self.bench.api.without_stale_reservations():
            self.bench.api.put(RESOURCE_CLAIMS, obj)

    def _present(self) -> list[str]:
        return [n for n in self.names if ("resourceclaims", n) in self.bench.api.objects]


class Succession(Story):
    """Leaders come and go besides; what one of them sent last arrives at any time later.

    There is no fence where the former leader knows that no allocation of it can.
    """

    def __init__(self, seed: int) -> None:
        self.late: list[Callable[[], object]] = []
        self.settled = True  # as the present leader was told
        self.clean = 0
        self.fence: Fence | None = None
        super().__init__(seed)

    def steps(self) -> list[Callable[[], None]]:
        return [*super().steps(), self._succeed, self._arrive]

    def end(self) -> None:
        while self.late:
            self._arrive()
        super().end()

    def _succeed(self) -> None:
        """The leader ends with any of its requests on their way, and the next one begins."""
        self._leave()
        former = self.bench
        left = former.writers.claims.may_be_made(former.cluster.claims)
        self.settled = self.settled and not left
        self.seen.clear()
        self.desk = Desk()
        self.bench = self.bench.succeeded_by(*NODES, send=self.desk.send)
        if self.settled:
            self.clean += 1
            return
        self.fence = fence = self.bench.fence(f"fence {self.draw.random()}")
        trouble = self.bench.api.refuse
        self.bench.api.refuse = lambda _: self._trouble(_STALE, _SILENCE)
        while not fence.stands():
            fence.work()
            self.draw.choice((self._answer, self._answer, self._arrive, self._tell))()
            fence.absorb()
            self.bench.time += 1
        self.fence = None
        self.bench.api.refuse = trouble
        self.settled = fence.has_no_gap()

    def _look(self) -> None:
        if self.fence is None:
            super()._look()

    def _leave(self) -> None:
        api, send = self.bench.api, self.bench.api.patch

        def patch(*args: Any, **more: Any) -> Any:
            if self.draw.random() < 0.5:
                return send(*args, **more)
            self.late.append(partial(send, *args, **more))
            raise _SILENCE

        api.patch = patch  # type: ignore[method-assign]
        for job in self.desk.jobs:
            job()
        api.patch = send  # type: ignore[method-assign]

    def _arrive(self) -> None:
        if self.late:
            request = self.late.pop(self.draw.randrange(len(self.late)))
            with contextlib.suppress(KubeError):
                request()


@pytest.mark.parametrize("kind", [Story, Succession], ids=["one-leader", "succession"])
@pytest.mark.parametrize("seed", range(12))
def test_no_slice_is_given_out_twice_and_none_is_lost(seed: int, kind: type[Story]) -> None:
    story = kind(seed)
    for _ in range(250):
        story.act()
    story.end()
    bench = story.bench
    waiting = [n for n in story.names if ("pods", n) in bench.api.objects and not bench.devices(n)]
    held = [n for n in story.names if bench.devices(n)]
    assert all(("pods", n) in bench.api.objects for n in held), "what nobody uses is free again"
    kept = {f"uid-{n}" for n in held} | {f"next:uid-{n}" for n in waiting}
    for state in (s for n in bench.cluster.fleet.nodes.values() for s in n.gpus):
        assert {h.claim_uid for h in state.holdings} <= kept
    for name in waiting:  # whoever waits does so for want of room
        assert bench.recorder.reasons(name)[-1] in ("WaitingForSlice", "NextInLine")
