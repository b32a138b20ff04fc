"""A bench whose writes lie on a desk until they are told to be done."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dra.common.resources import RESOURCE_CLAIMS
from dra.kube.errors import ConflictError
from tests.controller.helpers.bench import Bench
from tests.controller.helpers.fakeapi import from_the_second
from tests.controller.helpers.objects import claim, gpu, instance, mignode, pod, request

STATUS = "resourceclaims/status"


class Desk:
    """A place where jobs lie until they are told to be done."""

    def __init__(self) -> None:
        self.jobs: list[Callable[[], None]] = []
        self.sent = 0

    def send(self, job: Callable[[], None]) -> None:
        self.jobs.append(job)
        self.sent += 1

    def work_off(self) -> None:
        while self.jobs:
            self.jobs.pop(0)()


def at_desk(*nodes: str) -> tuple[Bench, Desk]:
    desk = Desk()
    bench = Bench(send=desk.send)
    for name in nodes:
        bench.add_node(name)
    settle(bench, desk)
    desk.sent = 0
    bench.api.writes.clear()
    return bench, desk


def settle(bench: Bench, desk: Desk, *, seconds: float = 0.0) -> None:
    """Let all jobs be done and their answers be taken, until nothing is left to do."""
    bench.run(seconds=seconds)
    while desk.jobs:
        desk.work_off()
        bench.run()


def wants(bench: Bench, name: str, profile: str = "7g.40gb", **spec: Any) -> None:
    bench.ask(name, name, request("r", f"mig-{profile}"), **spec)


def watch(bench: Bench, name: str) -> None:
    """The watch brings a claim's present state."""
    bench.cluster.set_claim(bench.api.get(RESOURCE_CLAIMS, name))


def served_half() -> tuple[Bench, Desk]:
    """Pod ``p`` has claim ``one`` on node-a, where ``two`` no longer fits; node-b is empty."""
    bench, desk = at_desk("node-a", "node-b")
    for name in ("one", "two"):
        bench.claim(claim(name, request("r", "mig-3g.20gb")))
    bench.pod(pod("p", "one", "two"))
    bench.api.refuse = from_the_second(STATUS, ConflictError("somebody was faster", status=409))
    settle(bench, desk)
    assert bench.node_of("one") == "node-a"
    bench.api.refuse = lambda _: None
    bench.change_claim("two")
    taken = gpu(0, instances=(instance("3g.20gb", 0), instance("1g.5gb", 5)))
    bench.cluster.set_mignode(mignode("node-a", taken))
    return bench, desk
