"""Kinds of GPUs, and what is asked about them: once for all alike, beforehand or at once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dra.cel import kinds as module
from dra.cel.kinds import Kinds, Match
from dra.cel.offers import GpuKind, Question, UnansweredError, identity_of
from dra.cel.questions import Answer, CostlySelectorError, Job, SelectorError
from dra.cel.selectors import Selectors
from dra.common.cache import BoundedCache
from dra.gpu.inventory import Gpu
from dra.gpu.names import NVIDIA_DRIVER
from tests.controller.helpers.objects import DRIVER, gpu, inventory
from tests.dra.cel.slices import OWN, SELECTORS

ALIKE = (f"{OWN}.type == 'mig'", f"{OWN}.profile == '1g.5gb'")


APART = (f"{OWN}.profile == '1g.5gb'", f"{OWN}.parentUUID == 'GPU-node-a-1'")


class Counting:
    """Evaluates, and keeps what it was asked."""

    def __init__(self) -> None:
        self.jobs: list[Job] = []
        self._selectors = Selectors()

    def answer(self, job: Job) -> Answer:
        self.jobs.append(job)
        return self._selectors.answer(job)


def offered(found: Match) -> list[str]:
    return [offer.name for offer in found.offers]


def members(kinds: Kinds, *gpus: Gpu) -> list[tuple[GpuKind, Gpu]]:
    return [(kinds.of(g, inventory("node-a", g)), g) for g in gpus]


def test_gpus_of_one_kind_share_an_evaluation_unless_the_selector_tells_them_apart() -> None:
    asked = Counting()
    kinds = Kinds(asked)
    (kind, one), (_, other) = members(kinds, gpu(0), gpu(1))
    assert offered(kinds.match(ALIKE, kind, one)) == ["1g.5gb"]
    assert kinds.match(ALIKE, kind, other) is kinds.match(ALIKE, kind, one)
    assert len(asked.jobs) == 3, "each expression by itself, and the kind"
    assert offered(kinds.match(APART, kind, one)) == []
    assert offered(kinds.match(APART, kind, other)) == ["1g.5gb"]
    asked.jobs.clear()
    assert offered(kinds.match(APART, kind, other)) == ["1g.5gb"]
    assert not asked.jobs


def test_what_is_not_known_is_asked_for_beforehand() -> None:
    kinds, evaluator = Kinds(), Selectors()
    gpus = members(kinds, *(gpu(n) for n in range(300)), replace(gpu(300), memory_mib=81920))
    for expressions, most in ((ALIKE, 4), (APART, 2 + 4)):
        asked: list[Question] = []
        while missing := [*kinds.missing(expressions, gpus)]:
            with pytest.raises(UnansweredError):
                kinds.match(expressions, *gpus[0])
            asked += missing
            for question in missing:
                kinds.learn(question, evaluator.answer(question.job))
        assert len(asked) <= most, "kinds and not GPUs, or many GPUs at once"
        assert len({q.key for q in asked}) == len(asked)
        assert kinds.match(expressions, *gpus[0]) is not None
    found = [g.name for k, g in gpus if kinds.match(APART, k, g).offers]
    assert found == ["gpu-1"]


def test_only_what_is_new_is_asked() -> None:
    kinds, evaluator = Kinds(), Selectors()
    gpus = members(kinds, gpu(0), gpu(1))
    while missing := [*kinds.missing(APART, gpus)]:
        for question in missing:
            kinds.learn(question, evaluator.answer(question.job))
    (question,) = kinds.missing(APART, [*gpus, *members(kinds, gpu(2))])
    assert [g.uuid for g in question.gpus] == ["GPU-node-a-2"]


def test_what_does_not_compile_or_takes_too_much_is_asked_no_further() -> None:
    kinds = Kinds()
    kind, one = members(kinds, gpu(0))[0]
    kinds.learn(Question(("no_such()",)), Answer(error="1:1: undeclared"))
    with pytest.raises(SelectorError, match="undeclared"):
        kinds.check("no_such()")
    kinds.learn(Question(("long()",)), Answer(error="it takes more than", costly=True))
    with pytest.raises(CostlySelectorError, match="takes more"):
        kinds.check("long()")
    assert not [*kinds.missing(("no_such()", "long()"), [(kind, one)])]
    kinds.learn(Question(("true",)), Answer())
    kinds.learn(Question(("true",), kind), Answer(error="it takes more than", costly=True))
    found = kinds.match(("true",), kind, one)
    assert (found.offers, found.costly) == ((), True)
    assert not [*kinds.missing(("true",), [(kind, one)])]


def test_costs_add_up_and_each_answer_counts_once() -> None:
    kinds = Kinds()
    gpus = members(kinds, gpu(0), gpu(1))
    kind = gpus[0][0]
    for expression in {*ALIKE, *APART}:
        kinds.learn(Question((expression,)), Answer(cost=1.0, per_gpu=expression == APART[1]))
    assert kinds.cost([ALIKE, ALIKE[:1]]) == 2.0
    kinds.learn(Question(ALIKE, kind), Answer(cost=4.0, error="failed"))
    assert kinds.cost([ALIKE, ALIKE[:1]]) == 6.0
    for number, (_, each) in enumerate(gpus):
        question = Question(APART, kind, (identity_of(each),))
        kinds.learn(question, Answer(cost=8.0 * (number + 1), error="failed"))
    assert kinds.cost([APART]) == 2.0 + 24.0


def test_a_whole_gpu_is_seen_of_one_in_mig_mode() -> None:
    kinds = Kinds(Selectors())
    card = gpu(0)
    kind = kinds.whole(card, inventory("node-a", card))
    assert offered(kinds.match((f"{OWN}.type == 'gpu'",), kind, card)) == ["gpu"]
    assert offered(kinds.match((f"{OWN}.uuid == 'GPU-node-a-0'",), kind, card)) == ["gpu"]
    elsewhere = replace(card, uuid="GPU-other")
    assert offered(kinds.match((f"{OWN}.uuid == 'GPU-node-a-0'",), kind, elsewhere)) == []


def test_an_index_tells_gpus_apart_and_a_function_of_such_a_name_does_not() -> None:
    kinds, cards = Kinds(Selectors()), (gpu(0, mig=False), gpu(1, mig=False))
    node = replace(inventory("node-a", *cards), driver=NVIDIA_DRIVER)
    kind, *rest = {kinds.of(card, node) for card in cards}
    assert not rest
    second = (f"device.attributes['{NVIDIA_DRIVER}'].index == 1",)
    assert [offered(kinds.match(second, kind, card)) for card in cards] == [[], ["gpu"]]
    assert not kinds.tells_gpus_apart(("'ab'.indexOf('b') == 1",))


def test_a_cache_is_bounded_by_weight_and_keeps_what_was_used_last() -> None:
    cache: BoundedCache[str, str] = BoundedCache(10, weigh=lambda key, value: len(key + value))
    cache.put("a", "12")
    cache.put("b", "34")
    assert cache.find("a") == "12"
    cache.put("c", "5678")
    assert (cache.find("a"), cache.find("b"), cache.find("c")) == ("12", None, "5678")
    assert cache.weight == 8
    cache.put("c", "5")
    assert cache.weight == 5
    cache.put("long", "x" * 100)
    assert (len(cache), cache.find("long")) == (1, "x" * 100), "the last one in any case"
    assert cache.get("d", lambda: "7") == "7"
    assert (cache.find("long"), cache.weight) == (None, 2)


def test_answers_are_forgotten_in_time_and_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Selectors in thousands of variants, and GPUs that come and go, are not all remembered."""
    monkeypatch.setattr(module, "_GPUS", 4)
    asked = Counting()
    kinds = Kinds(asked)
    for minor in range(12):
        kind, card = members(kinds, gpu(minor))[0]
        assert bool(kinds.match(APART, kind, card).offers) == (minor == 1)
    kind, _ = members(kinds, gpu(0))[0]
    first = f"{'x' * 10_000} == 0"
    for number in range(3000):
        text = f"{'x' * 10_000} == {number}"
        kinds.learn(Question((text,)), Answer(error="no"))
    asked.jobs.clear()
    with pytest.raises(SelectorError):
        kinds.check(first)
    assert len(asked.jobs) == 1


# -- classes whose selectors read our domain by name, and yet select devices of other drivers


SHARED = "device.attributes['resource.kubernetes.io']"


DYNAMIC = "device.attributes[device.driver]"


SIZE = "device.capacity[device.driver].memory"


WITHOUT = f"!has({OWN}.type)"


def selects_others(*expressions: str) -> bool:
    return Kinds(SELECTORS).selects_others(expressions, DRIVER)


@pytest.mark.parametrize(
    "expression",
    [
        f"{OWN}.?type.orValue('x') == 'x' && {SHARED}.pcieRoot == 'pci0000:00'",
        f"({OWN}.?type.orValue('none') == 'none') && {SHARED}.pcieRoot != 'q'",
        f"device.driver != '{DRIVER}' && {SHARED}.?pcieRoot.orValue('') == 'pci0000:00'",
        f"{WITHOUT} && has({SHARED}.pcieRoot)",
        f"!('{DRIVER}' in device.attributes) && 'pcieRoot' in {SHARED}",
        f"cel.bind(s, {SHARED}, s.pcieRoot == 'a' && s.numaNode == 1) && {WITHOUT}",
        f"{OWN}.?type.orValue('x') != 'mig' && {DYNAMIC}.model == 'A100'",
        f"device.driver == 'gpu.nvidia.com' && {OWN}.?type.orValue('x') in ['x'] && {DYNAMIC}.a",
        f"{WITHOUT} && !{DYNAMIC}.broken",
        f"{WITHOUT} && {DYNAMIC}.v.compareTo(semver('1.0.0')) >= 0 && {DYNAMIC}.type == 'gpu'",
        f"{WITHOUT} && {SIZE}.isGreaterThan(quantity('10Gi'))",
        f"['a.example.com'].exists(d, device.attributes[d].?model.orValue('') == 'm') && {WITHOUT}",
    ],
)
def test_what_a_device_of_others_may_have_is_tried(expression: str) -> None:
    assert selects_others(expression)
    first, _, second = expression.partition(" && ")
    if first.count("(") == first.count(")"):
        assert selects_others(second, first), "in selectors of their own"


@pytest.mark.parametrize(
    "expression",
    [
        f"{OWN}.type == 'mig' && {SHARED}.pcieRoot == 'pci0000:00'",
        f"{SHARED}.pcieRoot == 'pci0000:00' && {OWN}.type == 'mig'",
        f"has({OWN}.type) && {SHARED}.pcieRoot == 'pci0000:00'",
        f"{OWN}.?type.orValue('') == 'mig' && {DYNAMIC}.profile == '1g.5gb'",
        f"device.driver == '{DRIVER}' && {SHARED}.?pcieRoot.orValue('') == ''",
        f"device.driver == '{DRIVER}' && {WITHOUT}",
        f"'{DRIVER}' in device.attributes && {SHARED}.pcieRoot.matches('^pci')",
        f"device.capacity['{DRIVER}'].memory.compareTo(quantity('1Gi')) > 0 && {DYNAMIC}.a == 'p'",
        f"{OWN}[?'type'].hasValue() && {DYNAMIC}.type == 'mig'",
    ],
)
def test_no_device_of_others_has_attributes_of_our_domain(expression: str) -> None:
    assert not selects_others(expression)
