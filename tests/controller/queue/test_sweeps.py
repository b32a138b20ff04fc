"""Looks at waiting pods: one for all that are alike, and none where nothing may help."""

from __future__ import annotations

from typing import Any

import pytest

from controller.serve import placing, rules
from controller.serve.world import World
from dra.allocator.allocate import Allocator
from tests.controller.helpers.bench import Bench
from tests.controller.helpers.objects import claim, pod, request

MANY = 100


class Looks:
    """Decisions that the engine makes, and the pods that it makes them for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.at: list[str] = []
        self.searches = 0
        place, outcome = placing.place, Allocator.outcome

        def counted(world: World, found: Any, *args: Any) -> Any:
            self.at.append(found.key[1])
            return place(world, found, *args)

        def searched(allocator: Allocator, *args: Any, **more: Any) -> Any:
            self.searches += 1
            return outcome(allocator, *args, **more)

        monkeypatch.setattr(rules, "place", counted)
        monkeypatch.setattr(Allocator, "outcome", searched)

    def clear(self) -> None:
        self.at.clear()
        self.searches = 0


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Looks:
    return Looks(monkeypatch)


def waiting(bench: Bench, count: int = MANY, *, alike: bool = True) -> None:
    """Pods that wait for whole GPUs, all of which are in use."""
    for number in range(count):
        name = f"big-{number:04}"
        bench.claim(claim(name, request("r", "mig-7g.40gb")))
        cpu = "10m" if alike else f"{10 + number}m"
        bench.pod(pod(f"p-{name}", name, cpu=cpu))


def ends(bench: Bench, name: str, where: str, *, cpu: str = "100m") -> None:
    """A pod without claims runs on a node and ends."""
    bench.pod(pod(name, nodeName=where, cpu=cpu))
    bench.run()
    bench.remove_pod(name)


def test_one_look_is_enough_for_all_that_are_alike(looks: Looks) -> None:
    bench = Bench("node-a")
    bench.serve("p-first", "first")
    waiting(bench)
    bench.run()
    looks.clear()
    bench.delete_pod("p-first")  # its claim stays, and then ends
    bench.run(seconds=1.0)
    served = [n for n in looks.at if bench.devices(n.removeprefix("p-"))]
    assert served == ["p-big-0000"]
    assert len(looks.at) <= 3


def busy(*, alike: bool) -> Bench:
    """Two nodes with a large slice each, and the pods that wait for more."""
    bench = Bench("node-a", "node-b")
    for name in ("one", "two"):
        bench.ask(f"p-{name}", name, request("r", "mig-4g.20gb"))
    bench.run()
    waiting(bench, alike=alike)
    bench.run()
    return bench


@pytest.mark.parametrize("alike", [True, False])
def test_a_pod_that_fits_is_looked_at_among_the_first(looks: Looks, *, alike: bool) -> None:
    """However many wait before it, and although room is made before every look."""
    bench = busy(alike=alike)
    bench.pod(pod("other", nodeName="node-a", cpu="100m"))
    bench.run(seconds=1.0)
    looks.clear()
    bench.ask("zz-small", "small", cpu="10m")
    turns = 0
    while not bench.devices("small"):
        bench.remove_pod("other") if turns % 2 else bench.pod(pod("other", nodeName="node-a"))
        bench.time += 0.05
        bench.engine.absorb()
        assert bench.engine.work()
        turns += 1
        assert turns <= 6
