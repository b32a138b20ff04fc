"""A search that would take too long ends, and it is said that it did."""

from __future__ import annotations

from typing import Any

import pytest

from controller.queue.known_failures import REST
from dra.allocator.allocate import Allocator
from dra.allocator.explain.judge import explain
from dra.allocator.explain.message import as_obstacle
from dra.allocator.problem import Decision, Problem
from dra.allocator.search import budget as effort
from dra.claims.alternatives import MAX_CHOICES
from dra.claims.reasons import Reason
from tests.controller.bench import Bench
from tests.controller.deciding import problem, why
from tests.controller.objects import claim, filled, first_available, gpu, pod, request, with_gpus

UNLIKE = [request(f"r{size}", f"mig-min-{size}gb") for size in (5, 10, 20, 40)]


def test_it_is_given_up_and_said_and_found_with_more_effort(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known = with_gpus(gpu(0), gpu(1))
    found = problem(known, claim("c", *UNLIKE))
    allocator = Allocator(known.fleet, known.hosts)
    with monkeypatch.context() as patch:
        patch.setattr(effort, "MOST_STEPS", 50)
        assert allocator.decide(found) is None
    assert allocator.gave_up(found)
    obstacle = as_obstacle(explain(found, allocator, known.fleet))
    assert obstacle.reason is Reason.UNSUPPORTED
    assert "4 requests together was given up" in obstacle.message
    assert "name one profile in each" in obstacle.message
    assert allocator.decide(found) is not None
    assert not allocator.gave_up(found)


def test_what_is_searched_to_the_end_is_only_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    known = with_gpus(filled(0, *range(7)))
    found = problem(known, claim("c", *UNLIKE))
    allocator = Allocator(known.fleet, known.hosts)
    monkeypatch.setattr(effort, "MOST_STEPS", 50)
    assert allocator.decide(found) is None
    assert not allocator.gave_up(found)
    assert as_obstacle(explain(found, allocator, known.fleet)).reason is Reason.WAITING


def test_combining_gpus_is_an_effort_too(monkeypatch: pytest.MonkeyPatch) -> None:
    known = with_gpus(*(gpu(n, mig=False) for n in range(8)))
    uuid = "device.attributes['mig.dra.dev'].uuid"
    asked = [request(f"r{n}", "gpu.dra.dev", f"{uuid} != 'x{n}'") for n in range(6)]
    found = problem(known, claim("c", *asked))
    allocator = Allocator(known.fleet, known.hosts)
    with monkeypatch.context() as patch:
        patch.setattr(effort, "MOST_STEPS", 50)
        assert allocator.decide(found) is None
    assert allocator.gave_up(found)
    assert allocator.decide(found) is not None


def test_a_pod_is_told_and_others_are_served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(effort, "MOST_STEPS", 50)
    bench = Bench("node-a")
    bench.claim(claim("hard", *UNLIKE))
    bench.pod(pod("p-hard", "hard"))
    bench.claim(claim("easy"))
    bench.pod(pod("p-easy", "easy"))
    bench.run()
    assert "UnsupportedRequest" in bench.recorder.reasons("hard")
    assert bench.devices("easy")


def test_requests_that_select_the_same_in_other_words_are_alike(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known = with_gpus(gpu(0), gpu(1))
    asked = [request(f"r{n}", "mig-1g.5gb", f"device.driver != 'x{n}'") for n in range(14)]
    monkeypatch.setattr(effort, "MOST_STEPS", 1000)
    decision = Allocator(known.fleet, known.hosts).decide(problem(known, claim("c", *asked)))
    assert decision is not None
    assert {pick.request for pick in decision.picks} == {f"r{n}" for n in range(14)}


def test_a_search_that_was_given_up_rests_many_times_as_long_as_it_took(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(effort, "MOST_STEPS", 50)
    bench, decide, tried = Bench("node-a"), Allocator.decide, list[float]()

    def slow(allocator: Allocator, asked: Problem, *more: Any) -> Decision | None:
        if asked.pod.key[1] == "p-hard":
            tried.append(bench.time)
            bench.time += 1.0
        return decide(allocator, asked, *more)

    monkeypatch.setattr(Allocator, "decide", slow)
    bench.claim(claim("hard", *UNLIKE))
    bench.pod(pod("p-hard", "hard"))
    for number in range(100):
        bench.claim(claim(f"easy-{number}"))
        bench.pod(pod(f"p-{number}", f"easy-{number}"))
        bench.run(seconds=0.5)
        assert bench.devices(f"easy-{number}")
        bench.delete_pod(f"p-{number}")
        bench.run(seconds=0.5)
    assert len(tried) == len(range(0, 100, REST))
    assert set(bench.recorder.reasons("p-hard")) == {"UnsupportedRequest"}


def test_combinations_of_alternatives_that_were_not_tried_are_owned_up_to() -> None:
    either = [
        first_available(f"r{n}", ("a", "mig-1g.5gb", {}), ("b", "mig-2g.10gb", {}))
        for n in range(10)
    ]
    found = why(with_gpus(filled(0, *range(7))), claim("c", *either))
    assert (
        f"of 1024 combinations of alternatives the first {MAX_CHOICES} were tried" in found.message
    )
    assert "state fewer alternatives" in found.message
