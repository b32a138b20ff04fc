"""Gangs that are large, many, or never whole: others are served all the same."""

from __future__ import annotations

from math import inf

import pytest

from dra.gangs.decision import GangDecision, Trial
from dra.pods import selectors as labelselector
from tests.controller.helpers.bench import Bench
from tests.controller.helpers.needs import affine, selector
from tests.controller.helpers.objects import node, pod, request
from tests.controller.serve.gangs.gangpods import NODES, create, held, told


class Counted:
    """Decisions for gangs, and their parts; each takes a tenth of a second of ``bench``."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.parts = 0
        self.begun = 0
        self.bench: Bench | None = None
        go_on, begin = GangDecision.go_on, GangDecision.__init__

        def counted(decision: GangDecision, *, steps: float = inf) -> object:
            self.parts += 1
            if self.bench is not None:
                self.bench.time += 0.1
            return go_on(decision, steps=steps)

        def made(decision: GangDecision, *args: object) -> None:
            self.begun += 1
            begin(decision, *args)  # type: ignore[arg-type]

        monkeypatch.setattr(GangDecision, "go_on", counted)
        monkeypatch.setattr(GangDecision, "__init__", made)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counted:
    return Counted(monkeypatch)


def single(bench: Bench, name: str) -> None:
    bench.ask(name, name, request("r", "mig-1g.5gb"))


def step(bench: Bench) -> None:
    bench.engine.absorb()
    bench.engine.work()


def test_others_are_served_between_the_parts_of_a_long_decision(counted: Counted) -> None:
    bench = Bench(*(f"node-{n:03}" for n in range(71)))
    counted.bench = bench
    create(bench, "a", *range(140), size="140")
    while not counted.parts:
        step(bench)
    single(bench, "p")
    for _ in range(4000):
        step(bench)
        if bench.devices("p"):
            break
    assert bench.devices("p")
    assert not held(bench, "a")
    for _ in range(5):
        bench.run(seconds=1.0)
    assert counted.begun == 1
    assert counted.parts > 1
    assert len(held(bench, "a")) == 140


def test_pods_of_a_gang_are_compared_together_as_much_as_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Three terms of 200 pods beside 20,000 others took 7 s without anybody in between."""
    monkeypatch.setattr("dra.pods.rules.MOST_COMPARED", 1000)
    compared = calls_of(monkeypatch, labelselector, "holds")
    bench = Bench(*NODES)
    for number in range(50):
        body = pod(f"o{number}", nodeName=NODES[0])
        body["metadata"]["labels"] = {"app": "x", "number": str(number)}
        bench.pod(body)
    shuns = affine("kubernetes.io/hostname", selector(app="y"), anti=True)
    create(bench, "a", *range(20), size="20", profile="1g.5gb", affinity=shuns)
    compared.clear()
    bench.run()
    assert len(held(bench, "a")) == 20
    assert len(compared) <= 1000


def test_a_part_of_a_decision_has_fewer_pods_that_take_long_to_be_compared_with_nodes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """60 terms of node affinity of each of 200 pods, which no node meets, took 5 s in one part."""
    bench = Bench(*NODES)
    for number in range(50):
        bench.cluster.set_node(node(f"without-gpus-{number}"))
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    for number in range(40):
        key = {"key": f"none-{number}", "operator": "Exists"}
        terms = {"nodeSelectorTerms": [{"matchExpressions": [key]}] * 60}
        nodes = {"nodeAffinity": {required: terms}}
        create(bench, "a", number, size="40", profile="1g.5gb", affinity=nodes)
    tried = calls_of(monkeypatch, Trial, "rest")
    most = 0
    for _ in range(200):
        tried.clear()
        step(bench)
        most = max(most, len(tried))
        bench.time += 1.0
    assert 0 < most <= 35
    assert "0 fit" in told(bench, "a-0")


def calls_of(monkeypatch: pytest.MonkeyPatch, module: object, name: str) -> list[None]:
    """The calls of a function from now on."""
    calls: list[None] = []
    function = getattr(module, name)

    def call(*args: object, **fields: object) -> object:
        calls.append(None)
        return function(*args, **fields)

    monkeypatch.setattr(module, name, call)
    return calls
