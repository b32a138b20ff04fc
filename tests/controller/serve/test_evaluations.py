"""Selectors are evaluated beforehand and elsewhere: who asks for too much waits alone."""

from __future__ import annotations

from dataclasses import replace

from controller import times
from controller.serve import evaluations
from dra.cel.questions import Answer, Job
from dra.cel.selectors import Selectors
from dra.common.resources import Obj
from tests.controller.helpers.bench import Bench
from tests.controller.helpers.desk import Desk
from tests.controller.helpers.objects import claim, gpu, mignode, pod, request
from tests.dra.cel.slices import OWN


class Costing:
    """Answers as the runtime does; what has ``slow`` in it costs as much as it may, or is ended."""

    def __init__(self, *, cost: float = 0.0, ended: bool = False) -> None:
        self.asked: list[str] = []
        self.error: Exception | None = None
        self._selectors = Selectors()
        self._cost = cost
        self._ended = ended

    def answer(self, job: Job) -> Answer:
        if self.error is not None:
            raise self.error
        text = " && ".join(job.expressions)
        self.asked.append(text)
        slow = "slow" in text
        if slow and self._ended:
            return Answer(error="it takes more than it may", costly=True, cost=self._cost)
        answer = self._selectors.answer(job)
        return Answer(
            error=answer.error,
            per_gpu=answer.per_gpu,
            selected=answer.selected,
            cost=self._cost if slow else 0.0,
        )


def site(evaluator: Costing) -> tuple[Bench, Desk]:
    """A bench with two nodes whose questions lie on a desk until they are answered."""
    asking = Desk()
    bench = Bench("node-a", "node-b", evaluator=evaluator, asking=asking.send)
    return bench, asking


def selector(text: str) -> Obj:
    return {"selectors": [{"cel": {"expression": text}}]}


def waits(bench: Bench, name: str, *texts: str, namespace: str = "default") -> None:
    """A pod with a claim that has one request for each selector."""
    requests = [request(f"r{n}", "mig-1g.5gb", **selector(t)) for n, t in enumerate(texts)]
    bench.claim(moved(claim(name, *requests), namespace))
    bench.pod(moved(pod(name, name), namespace))


def moved(obj: Obj, namespace: str) -> Obj:
    return {**obj, "metadata": {**obj["metadata"], "namespace": namespace}}


def answer_all(bench: Bench, asking: Desk) -> None:
    bench.run()
    while asking.jobs:
        asking.jobs.pop(0)()
        bench.run()


def test_a_decision_is_put_off_until_its_answers_are_there() -> None:
    evaluator = Costing()
    bench, asking = site(evaluator)
    waits(bench, "p", f"{OWN}.profile != 'x'")
    bench.run()
    assert bench.devices("p") == []
    assert bench.recorder.events == [], "it is no news for anybody"
    answer_all(bench, asking)
    assert bench.devices("p")
    before = len(evaluator.asked)
    waits(bench, "q", f"{OWN}.profile != 'x'")
    bench.run()
    assert bench.devices("q"), "what is known is not asked again"
    assert len(evaluator.asked) == before


def test_who_waits_for_long_is_told() -> None:
    bench, asking = site(Costing())
    waits(bench, "p", f"{OWN}.profile != 'x'")
    bench.run()
    bench.run(seconds=times.EVALUATION_TOLD + 1)
    assert bench.recorder.reasons("p") == ["EvaluatingSelectors"] * 2, "the pod and the claim"
    answer_all(bench, asking)
    assert bench.devices("p")


def test_a_selector_that_takes_too_much_is_told_and_not_tried_again() -> None:
    evaluator = Costing(cost=0.25, ended=True)
    bench, asking = site(evaluator)
    waits(bench, "bad", "'slow' == 'slow'")
    answer_all(bench, asking)
    assert "SelectorTooCostly" in bench.recorder.reasons("bad")
    (message, *_) = [m for _, name, _, m in bench.recorder.events if name == "bad"]
    assert "takes more than" in message
    assert "'slow'" in message
    tries = len(evaluator.asked)
    for _ in range(20):
        bench.cluster.make_room()
        bench.run(seconds=61)
    assert len(evaluator.asked) == tries
    waits(bench, "good", f"{OWN}.type == 'mig'")
    answer_all(bench, asking)
    assert bench.devices("good")


def test_a_claim_has_a_budget_over_all_its_selectors() -> None:
    """Each is just within the limit."""
    evaluator = Costing(cost=0.24)
    bench, asking = site(evaluator)
    texts = [f"'slow' != '{n}'" for n in range(32)]
    waits(bench, "many", *texts)
    answer_all(bench, asking)
    assert set(bench.recorder.reasons("many")) == {"SelectorTooCostly"}
    used = 0.24 * sum("slow" in text for text in evaluator.asked)
    most = evaluations.CLAIM_SECONDS + 0.24 * evaluations.AT_ONCE
    assert used <= most, "its time is counted before more is asked"
    tries = len(evaluator.asked)
    for _ in range(20):
        bench.run(seconds=61)
    assert len(evaluator.asked) == tries, "what is over the budget stays so"


def test_kinds_of_gpus_count_in_a_claims_budget_too() -> None:
    evaluator = Costing(cost=0.24)
    bench, asking = site(evaluator)
    for number in range(40):
        card = replace(gpu(0, f"n{number}"), multiprocessors=100 + number)
        bench.cluster.set_mignode(mignode(f"n{number}", card))
    waits(bench, "many", "'slow' != ''")
    answer_all(bench, asking)
    assert set(bench.recorder.reasons("many")) == {"SelectorTooCostly"}
    assert sum("slow" in text for text in evaluator.asked) < 40


def test_a_tenant_with_many_slow_selectors_waits_behind_everybody_else() -> None:
    evaluator = Costing(cost=0.25)
    bench, asking = site(evaluator)
    for number in range(20):
        waits(bench, f"slow-{number}", f"'slow' != '{number}'", namespace="greedy")
    bench.run()
    for _ in range(3):
        asking.jobs.pop(0)()
        bench.run()
    waits(bench, "quick", f"{OWN}.profile != 'x'")
    bench.run()
    behind = 0
    while not bench.devices("quick"):
        asking.jobs.pop(0)()
        bench.run()
        behind += "slow" in evaluator.asked[-1]
    assert behind <= 1, "at most the one that is under way"
