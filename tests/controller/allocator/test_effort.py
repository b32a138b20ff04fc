"""The steps of a search have an end, node by node, and whoever waits is told of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from controller.serve.placing import REST
from dra.allocator import ongoing as budget
from dra.allocator.allocate import Allocator, OngoingDecision
from dra.allocator.explain.answers import as_obstacle
from dra.allocator.explain.judge import explain
from dra.allocator.ongoing import Budget, TooHardError
from dra.allocator.problem import Outcome
from dra.allocator.score import NO_WEIGHTS, best_fit
from dra.allocator.search.combine import combine
from dra.allocator.search.options import find_options
from dra.claims.reasons import Reason
from dra.claims.wants import MAX_CHOICES, Choices
from dra.common.resources import Obj
from tests.controller.allocator.devices.options import WHOLE, gpu_state, wants
from tests.controller.allocator.halffull import half_full
from tests.controller.helpers.bench import Bench
from tests.controller.helpers.deciding import decide, problem, why
from tests.controller.helpers.objects import (
    claim,
    filled,
    first_available,
    gpu,
    mignode,
    request,
    with_gpus,
)

UNLIKE = [request(f"r{size}", f"mig-min-{size}gb") for size in (5, 10, 20, 40)]
FEW = 1
"""Steps that do not suffice for the devices of any node."""


@pytest.fixture(scope="module", autouse=True)
def large_clusters() -> Iterator[None]:
    """They go after these tests: every later collection of garbage would look through them."""
    yield
    half_full.cache_clear()


def test_it_is_given_up_and_said_and_found_with_more_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    known = with_gpus(gpu(0), gpu(1))
    found = problem(known, claim("c", *UNLIKE))
    allocator = Allocator(known.fleet, known.hosts)
    with monkeypatch.context() as patch:
        patch.setattr(budget, "NODE_STEPS", FEW)
        outcome = allocator.outcome(found)
    assert outcome.decision is None
    assert outcome.given_up is not None
    assert outcome.given_up.too_hard == 1
    obstacle = as_obstacle(explain(found, allocator, given_up=outcome.given_up))
    assert obstacle.reason is Reason.SEARCH_GIVEN_UP
    assert "4 requests together was given up" in obstacle.message
    assert "name one profile in each" in obstacle.message
    outcome = allocator.outcome(found)
    assert outcome.decision is not None
    assert outcome.given_up is None


def test_combining_gpus_takes_steps_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "NODE_STEPS", 100)
    six = (1,) * 6
    asked = wants(six, [(WHOLE,)] * 6, best_fit)
    options = find_options(gpu_state(None), asked, NO_WEIGHTS, Budget())
    with pytest.raises(TooHardError):
        combine([options] * 8, six, {}, Budget())


def test_first_fit_finds_what_takes_too_long_to_find_at_its_cheapest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known = with_gpus(gpu(0), gpu(1), gpu(2, mig=False))
    names = ["gpu.dra.dev", "mig-1g.5gb", "mig-2g.10gb", "mig-3g.20gb", "mig-4g.20gb"]
    asked = claim(
        "c",
        *(request(f"r{n}", name) for n, name in enumerate(names)),
        constraints=[{"distinctAttribute": PARENT, "requests": ["r3", "r4"]}],
    )
    monkeypatch.setattr(budget, "NODE_STEPS", 60)
    outcome = Allocator(known.fleet, known.hosts).outcome(problem(known, asked))
    assert outcome.given_up is None
    assert outcome.decision is not None
    found = {p.request: p for p in outcome.decision.picks}
    assert [found[f"r{n}"].profile for n in range(5)] == ["", *(n[4:] for n in names[1:])]
    assert found["r3"].gpu != found["r4"].gpu


def test_a_later_alternative_is_not_taken_silently_where_an_earlier_was_too_hard(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench("node-a")
    bench.cluster.set_mignode(mignode("node-a", gpu(0), gpu(1)))
    earlier = ("many", "mig-min-5gb", {"count": 4})
    bench.ask("p", "either", first_available("r", earlier, ("one", "mig-1g.5gb", {})))
    with monkeypatch.context() as patch:
        patch.setattr(budget, "NODE_STEPS", 16)  # a node of two GPUs takes 20
        bench.run()
    assert len(bench.devices("either")) == 1
    bench.serve("q", "easy", first_available("r", earlier, ("one", "mig-1g.5gb", {})))
    assert len(bench.devices("easy")) == 4
    said = {e[1]: e[3] for e in bench.recorder.events if e[2] == "Allocated"}
    assert "the search for earlier alternatives of the pod's requests was given up" in said["p"]
    assert "name one profile in each" in said["p"]
    assert "alternatives" not in said["q"]


def test_the_best_of_what_was_found_is_taken_when_the_steps_are_used_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known = half_full(100)
    asked = claim("c", *(request(f"r{n}", "mig-1g.5gb", f"{UUID} != 'x{n}'") for n in range(2)))
    full = Allocator(known.fleet, known.hosts).decide(problem(known, asked))
    monkeypatch.setattr(budget, "ENOUGH_STEPS", 1)
    first = Allocator(known.fleet, known.hosts).decide(problem(known, asked))
    assert full is not None
    assert first is not None
    assert first.node == "node-000"
    monkeypatch.setattr(budget, "DECISION_STEPS", 1)
    outcome = Allocator(known.fleet, known.hosts).outcome(problem(known, asked))
    assert outcome.decision is not None


UUID = "device.attributes['mig.dra.dev'].parentUUID"
PARENT, ROOT = "mig.dra.dev/parentUUID", "resource.kubernetes.io/pcieRoot"
SIZES = ["mig-7g.40gb", "mig-4g.20gb", "mig-3g.20gb", "mig-2g.10gb", "mig-1g.5gb"]


def each(number: int, name: str, **more: Any) -> list[Any]:
    """Requests of a class whose selectors look at the GPU, each at another."""
    return [request(f"r{n}", name, f"{UUID} != 'GPU-{n}'", **more) for n in range(number)]


def alternatives(**more: Any) -> list[Any]:
    """Three requests with eight alternatives each."""
    names = [*SIZES, *SIZES[-3:]]
    return [
        first_available(f"r{n}", *((f"s{i}", name, more) for i, name in enumerate(names)))
        for n in range(3)
    ]


HARD = {
    "pairs of a root": claim(
        "c", request("r", "mig-3g.20gb", count=2), constraints=[{"matchAttribute": ROOT}]
    ),
    "unlike ones of a root": claim(
        "c",
        request("a", "mig-3g.20gb"),
        request("b", "mig-2g.10gb"),
        request("c", "mig-min-5gb"),
        constraints=[{"matchAttribute": ROOT}],
    ),
    "of different roots": claim(
        "c", request("r", "mig-2g.10gb", count=4), constraints=[{"distinctAttribute": ROOT}]
    ),
    "four whose selectors look at the GPU": claim("c", *each(4, "mig-1g.5gb")),
    "those on one GPU": claim(
        "c", *each(2, "mig-1g.5gb"), constraints=[{"matchAttribute": PARENT}]
    ),
    "those on different GPUs": claim(
        "c", *each(3, "mig-2g.10gb"), constraints=[{"distinctAttribute": PARENT}]
    ),
    "those of different sizes": claim("c", *each(3, "mig-min-5gb")),
    "of one product": claim(
        "c",
        request("r", "mig-2g.10gb", count=5),
        constraints=[{"matchAttribute": "mig.dra.dev/productName"}],
    ),
    "alternatives": claim("c", *alternatives()),
    "alternatives of many": claim("c", *alternatives(count=6)),
    "alternatives of a root": claim(
        "c", *alternatives(count=2), constraints=[{"matchAttribute": ROOT}]
    ),
}


@pytest.mark.parametrize("asked", HARD.values(), ids=HARD)
def test_what_fits_is_found_on_many_nodes_that_are_half_full(
    asked: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The first that is found will do: that there are better ones is said by others.
    monkeypatch.setattr(budget, "ENOUGH_STEPS", 1)
    known = half_full(100)
    assert Allocator(known.fleet, known.hosts).decide(problem(known, asked)) is not None


@pytest.mark.parametrize("name", ["pairs of a root", "unlike ones of a root", "alternatives"])
def test_it_is_though_better_ones_are_looked_for(name: str) -> None:
    known = half_full(100)
    assert Allocator(known.fleet, known.hosts).decide(problem(known, HARD[name])) is not None


def test_everything_of_a_node_and_views_are_found_on_many_nodes() -> None:
    known = half_full(100)
    look = request("r", "gpu.dra.dev", allocationMode="All", adminAccess=True)
    assert decide(known, claim("c", look)) is not None
    taken = why(known, claim("c", request("r", "mig-3g.20gb", allocationMode="All")))
    assert taken.reason is Reason.WAITING


def test_a_pod_is_told_and_others_are_served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "NODE_STEPS", FEW)
    bench = Bench("node-a")
    bench.ask("a-hard", "hard", *UNLIKE)
    bench.serve("p-easy", "easy")
    assert "SearchGivenUp" in bench.recorder.reasons("hard")
    assert bench.devices("easy")


def test_a_search_that_was_given_up_rests_many_times_as_long_as_it_took(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(budget, "NODE_STEPS", FEW)
    bench, go_on, tried = Bench("node-a"), OngoingDecision.go_on, list[float]()

    def slow(ongoing: OngoingDecision, **steps: Any) -> Outcome | None:
        if ongoing.problem.pod.key[1] == "a-hard":
            tried.append(bench.time)
            bench.time += 1.0
        return go_on(ongoing, **steps)

    monkeypatch.setattr(OngoingDecision, "go_on", slow)
    bench.ask("a-hard", "hard", *UNLIKE)
    for number in range(100):
        bench.ask(f"p-{number}", f"easy-{number}")
        bench.run(seconds=0.5)
        assert bench.devices(f"easy-{number}")
        bench.delete_pod(f"p-{number}")
        bench.run(seconds=0.5)
    assert len(tried) == len(range(0, 100, REST))
    assert set(bench.recorder.reasons("a-hard")) == {"SearchGivenUp"}


def either(number: int, *names: str, alike: bool = True) -> list[Obj]:
    """Requests that any of these classes would serve; unlike ones differ in their selectors."""
    texts = [{"cel": {"expression": f"'{n}' != ''"}} for n in range(number)]
    tells: list[Obj] = [{} if alike else {"selectors": [text]} for text in texts]
    return [
        first_available(f"r{n}", *((f"s{k}", name, told) for k, name in enumerate(names)))
        for n, told in enumerate(tells)
    ]


@pytest.mark.parametrize(
    "asked",
    [
        either(10, "gpu.dra.dev", "mig-1g.5gb"),
        either(10, "mig-7g.40gb", "mig-1g.5gb"),
        either(10, "gpu.dra.dev", "mig-1g.5gb", alike=False),
        either(10, "mig-7g.40gb", "mig-1g.5gb", alike=False),
        either(10, "gpu.dra.dev", "mig-7g.40gb", "mig-4g.20gb", "mig-3g.20gb", "mig-1g.5gb"),
    ],
    ids=["nothing serves one", "alike", "nothing serves one, unlike", "unlike", "many"],
)
def test_alternatives_are_found_however_many_ways_there_are_to_combine_them(
    asked: list[Obj],
) -> None:
    assert decide(with_gpus(filled(0, 0), filled(1, 0)), claim("c", *asked)) is not None


def test_a_search_that_was_cut_off_says_so() -> None:
    chain = [{"matchAttribute": PARENT, "requests": [f"r{n}", f"r{n + 1}"]} for n in range(9)]
    asked = claim("c", *either(10, "mig-2g.10gb", "mig-1g.5gb"), constraints=chain)
    known = with_gpus(filled(0, *range(7)))
    found = problem(known, asked)
    allocator = Allocator(known.fleet, known.hosts)
    assert len([*Choices(found.claims, known.fleet.kinds.selected)]) == MAX_CHOICES
    outcome = allocator.outcome(found)
    assert outcome.given_up is not None
    assert outcome.given_up.untried
    assert allocator.could_serve(found, known.fleet.nodes), "nobody can tell"
