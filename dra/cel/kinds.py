"""Kinds of GPU, told apart, and which of their offers selectors select.

Selectors are evaluated once per kind, unless they look at what tells one GPU from another:
``questions.GpuIdentity``.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from dra.cel.offers import (
    Expressions,
    GpuKind,
    Offer,
    Question,
    UnansweredError,
    identity_of,
    kind_of,
    look,
)
from dra.cel.questions import Answer, CostlySelectorError, Evaluator, GpuIdentity, SelectorError
from dra.cel.strangers import reads_others, reads_unknown
from dra.common.cache import BoundedCache
from dra.gpu.inventory import Gpu, Inventory

T = TypeVar("T", bound=Hashable)

_MOST = 254


class GpuTable(Generic[T]):
    """A result for each of the GPUs, which are known by small numbers.

    Results are few: after 254 different ones the last stands for any other.
    """

    def __init__(self) -> None:
        self._codes = bytearray()
        self._results: list[T] = []
        self._code_of: dict[T, int] = {}

    @property
    def weight(self) -> int:
        """Bytes that the codes take."""
        return len(self._codes)

    def get(self, number: int) -> T | None:
        """The result for a GPU, None when there is none yet."""
        code = self._codes[number] if number < len(self._codes) else 0
        return self._results[code - 1] if code else None

    def put(self, number: int, result: T) -> None:
        """Take the result for a GPU."""
        code = self._code_of.get(result)
        if code is None:
            if len(self._results) < _MOST:
                self._results.append(result)
            code = self._code_of[result] = len(self._results)
            if len(self._code_of) > _MOST:
                del self._code_of[result]
        if number >= len(self._codes):
            self._codes.extend(bytes(number + 1 - len(self._codes)))
        self._codes[number] = code


_BYTES = 16 * 2**20
"""Upper bound on each of three memories of answers, with the texts that they are known by."""

_OVERHEAD = 500
"""Bytes of an answer besides its texts, roughly."""

_GPUS = 100_000
"""GPUs that are numbered; a cluster has fewer."""

_CLASSES = 2048
"""Selectors of classes of which it is remembered whether they select other drivers' devices."""


@dataclass(frozen=True, slots=True)
class Match:
    """The offers that a request's selectors select. ``error`` is a selector's run-time failure.

    Shares are among them only if nothing else is: whoever asks for a slice by selectors that do not
    look at ``type`` is not given a part of one. ``costly``: it is a failure for want of time or
    memory.
    """

    offers: tuple[Offer, ...]
    error: str = ""
    costly: bool = False


@dataclass(frozen=True, slots=True)
class _Costed(Generic[T]):
    """An answer, and the seconds of CPU time that it took."""

    value: T
    cost: float


_OfKind = tuple[Expressions, GpuKind]


class KnownAnswers:
    """Answers that were given, by what was asked. Not thread-safe.

    Each method that looks one up returns None where it is not known.
    """

    def __init__(self) -> None:
        self._facts: BoundedCache[str, Answer] = BoundedCache(_BYTES, weigh=_facts_weight)
        self._matches: BoundedCache[_OfKind, _Costed[Match]] = BoundedCache(
            _BYTES, weigh=_match_weight
        )
        self._tables: BoundedCache[Expressions, _Costed[GpuTable[Match]]] = BoundedCache(
            _BYTES, weigh=_table_weight
        )
        self._numbers: dict[tuple[GpuKind, GpuIdentity], int] = {}
        self._of_others: BoundedCache[Expressions, Mapping[str, bool] | None] = BoundedCache(
            _BYTES, weigh=_others_weight
        )
        self._others: BoundedCache[tuple[Expressions, str], bool | str] = BoundedCache(_CLASSES)

    def facts(self, expression: str) -> Answer | None:
        """Facts about one expression: whether it compiles, and tells GPUs apart."""
        return self._facts.find(expression)

    def of_kind(self, expressions: Expressions, kind: GpuKind) -> Match | None:
        """Offers that they select of any GPU of ``kind``."""
        found = self._matches.find((expressions, kind))
        return found.value if found is not None else None

    def of_gpu(self, expressions: Expressions, kind: GpuKind, gpu: GpuIdentity) -> Match | None:
        """Offers that they select of one GPU of ``kind``."""
        known = self._tables.find(expressions)
        return known.value.get(self._number(kind, gpu)) if known is not None else None

    def others(self, expressions: Expressions, driver: str) -> bool | None:
        """True if they select devices of other drivers than ``driver``.

        Raises:
            CostlySelectorError: to find that out takes more than a selector may have.
        """
        found = self._others.find((expressions, driver))
        if isinstance(found, str):
            raise CostlySelectorError(found)
        return found

    def of_others(self, expressions: Expressions) -> Mapping[str, bool] | None:
        """Devices of other drivers, selected or not; None where that cannot be told."""
        return self._of_others.get(expressions, dict)

    def put_others(self, expressions: Expressions, driver: str, *, selected: bool) -> None:
        """Take it that they select, or do not select, devices of other drivers."""
        self._others.put((expressions, driver), selected)

    def cost(self, asked: Collection[Expressions], kinds: Collection[GpuKind]) -> float:
        """Seconds of CPU time that all answers took that are known of expressions."""
        facts = [self._facts.find(e) for e in {e for expressions in asked for e in expressions}]
        tables = [self._tables.find(expressions) for expressions in asked]
        matches = [self._matches.find((es, kind)) for es in asked for kind in kinds]
        return sum(known.cost for known in (*facts, *tables, *matches) if known is not None)

    def learn(self, question: Question, answer: Answer) -> None:
        """Take the answer to a question."""
        expressions, kind = question.expressions, question.kind
        if question.others:
            self._learn_of_others(question, answer)
        elif question.driver and answer.costly:
            self._others.put((expressions, question.driver), answer.error)
        elif question.driver:
            failed = any(selected.error for selected in answer.selected)
            chosen = any(selected.devices for selected in answer.selected)
            unknown = failed and reads_unknown(expressions, question.driver)
            self.put_others(expressions, question.driver, selected=chosen or unknown)
        elif kind is None:
            self._facts.put(expressions[0], answer)
        elif not question.gpus:
            match = _read(kind, answer, 0)
            self._matches.put((expressions, kind), _Costed(match, answer.cost))
        else:
            self._learn_of_gpus(question, kind, answer)

    def _learn_of_others(self, question: Question, answer: Answer) -> None:
        known = self.of_others(question.expressions)
        failed = answer.error or any(selected.error for selected in answer.selected)
        if known is not None and not failed:
            chosen = {index for selected in answer.selected for index in selected.devices}
            of_these = {text: index in chosen for index, text in enumerate(question.others)}
            self._of_others.put(question.expressions, {**known, **of_these})
        else:
            self._of_others.put(question.expressions, None)

    def _learn_of_gpus(self, question: Question, kind: GpuKind, answer: Answer) -> None:
        self.forget_numbers()
        known = self._tables.find(question.expressions)
        table = known.value if known is not None else GpuTable[Match]()
        for index, identity in enumerate(question.gpus):
            table.put(self._number(kind, identity), _read(kind, answer, index))
        before = known.cost if known is not None else 0.0
        self._tables.put(question.expressions, _Costed(table, before + answer.cost))

    def forget_numbers(self) -> None:
        """Begin anew when there are many, most of GPUs that are gone. Not between uses of one."""
        if len(self._numbers) >= _GPUS:
            self._numbers.clear()
            self._tables = BoundedCache(_BYTES, weigh=_table_weight)

    def _number(self, kind: GpuKind, gpu: GpuIdentity) -> int:
        return self._numbers.setdefault((kind, gpu), len(self._numbers))


def _read(kind: GpuKind, answer: Answer, index: int) -> Match:
    if answer.error:
        return Match((), answer.error, costly=answer.costly)
    found = answer.selected[index]
    offers = tuple(kind.offers[n] for n in found.devices)
    return Match(tuple(o for o in offers if not o.shared) or offers, found.error)


def _facts_weight(expression: str, facts: Answer) -> int:
    return _OVERHEAD + len(expression) + len(facts.error)


def _match_weight(key: _OfKind, known: _Costed[Match]) -> int:
    return _OVERHEAD + sum(map(len, key[0])) + len(known.value.error)


def _table_weight(expressions: Expressions, known: _Costed[GpuTable[Match]]) -> int:
    return _OVERHEAD + sum(map(len, expressions)) + known.value.weight


def _others_weight(expressions: Expressions, known: Mapping[str, bool] | None) -> int:
    return _OVERHEAD + sum(map(len, expressions)) + sum(100 + len(text) for text in known or ())


_AT_ONCE = 128
"""GPUs in one question: some ten milliseconds."""


class Kinds:
    """Tells kinds apart, and which of their offers selectors select. Not thread-safe.

    Questions whose answers are not remembered are put to ``evaluator`` there and then. Without one
    they raise UnansweredError, and ``learn`` takes the answer from whoever asked in the meantime.
    """

    def __init__(self, evaluator: Evaluator | None = None) -> None:
        self._evaluator = evaluator
        self._kinds: BoundedCache[Hashable, GpuKind] = BoundedCache(2048)
        self._answers = KnownAnswers()

    def of(self, gpu: Gpu, inventory: Inventory) -> GpuKind:
        """The kind of ``gpu``."""
        return self._kinds.get(look(gpu, inventory), lambda: kind_of(gpu, inventory))

    def whole(self, gpu: Gpu, inventory: Inventory) -> GpuKind:
        """The kind of ``gpu`` seen as a whole, whether it is in MIG mode or not."""
        return self.of(replace(gpu, mig_enabled=False, sharing=None), inventory)

    def check(self, expression: str) -> None:
        """Raise SelectorError, with the place, unless the expression compiles to a boolean.

        Raises:
            CostlySelectorError: to compile it takes more than a selector may have.
        """
        facts = self._facts_of(expression)
        if facts.error:
            raise (CostlySelectorError if facts.costly else SelectorError)(facts.error)

    def selects_others(self, expressions: Expressions, driver: str) -> bool:
        """True if ``expressions`` select devices of other drivers than ``driver``, as far as tried.

        One that fails on such a device selects it if it fails for want of what others may have, as
        ``reads_unknown`` has it.

        Raises:
            SelectorError: an expression does not compile.
            CostlySelectorError: to compile or to try them takes more than they may have.
        """
        found = self._answers.others(expressions, driver)
        if found is not None:
            return found
        if not expressions or reads_others(expressions, driver):
            self._answers.put_others(expressions, driver, selected=True)
        else:
            self._ask(Question(expressions, driver=driver))
        return self.selects_others(expressions, driver)

    def selected_others(
        self, expressions: Expressions, texts: Collection[str]
    ) -> Collection[str] | None:
        """Those that all ``expressions`` select of devices of other drivers that there are.

        None where that cannot be told: one fails, or takes too much.
        """
        known = self._answers.of_others(expressions)
        if known is None:
            return None
        missing = [text for text in texts if text not in known]
        if missing:
            try:
                self._ask(Question(expressions, others=tuple(missing[:_AT_ONCE])))
            except SelectorError:
                return None
            return self.selected_others(expressions, texts)
        return [text for text in texts if known[text]]

    def tells_gpus_apart(self, expressions: Expressions) -> bool:
        """True if one of them may select differently on GPUs of one kind."""
        return any(self._facts_of(e).per_gpu for e in expressions)

    def match(self, expressions: Expressions, kind: GpuKind, gpu: Gpu) -> Match:
        """Offers of ``gpu``, which is of ``kind``, that all ``expressions`` select.

        Raises:
            SelectorError: an expression does not compile.
        """
        if not self.tells_gpus_apart(expressions):
            return self.match_kind(expressions, kind)
        self._answers.forget_numbers()
        identity = identity_of(gpu)
        found = self._answers.of_gpu(expressions, kind, identity)
        if found is None:
            self._ask(Question(expressions, kind, (identity,)))
            return self.match(expressions, kind, gpu)
        return found

    def match_kind(self, expressions: Expressions, kind: GpuKind) -> Match:
        """Offers of any GPU of ``kind`` that all ``expressions``, which tell none apart, select.

        Raises:
            SelectorError: an expression does not compile.
        """
        found = self._answers.of_kind(expressions, kind)
        if found is None:
            self._ask(Question(expressions, kind))
            return self.match_kind(expressions, kind)
        return found

    def selected(self, expressions: Expressions) -> Hashable:
        """Equal for expressions that select the same of every GPU.

        Raises:
            SelectorError: an expression does not compile.
        """
        if self.tells_gpus_apart(expressions):
            return expressions
        return tuple(self.match_kind(expressions, kind).offers for kind in [*self._kinds.values()])

    def missing(
        self, expressions: Expressions, gpus: Iterable[tuple[GpuKind, Gpu]]
    ) -> Iterator[Question]:
        """Questions that have to be asked before ``expressions`` are matched to any of ``gpus``."""
        facts = {e: self._answers.facts(e) for e in expressions}
        unknown = [e for e, found in facts.items() if found is None]
        if unknown or any(found.error for found in facts.values() if found is not None):
            yield from (Question((e,)) for e in unknown)
        elif not self.tells_gpus_apart(expressions):
            for kind in [*self._kinds.values()]:
                if self._answers.of_kind(expressions, kind) is None:
                    yield Question(expressions, kind)
        else:
            yield from self._missing_gpus(expressions, gpus)

    def _missing_gpus(
        self, expressions: Expressions, gpus: Iterable[tuple[GpuKind, Gpu]]
    ) -> Iterator[Question]:
        lacking: dict[GpuKind, list[GpuIdentity]] = {}
        for kind, gpu in gpus:
            identity = identity_of(gpu)
            if self._answers.of_gpu(expressions, kind, identity) is None:
                lacking.setdefault(kind, []).append(identity)
        for kind, found in lacking.items():
            for start in range(0, len(found), _AT_ONCE):
                yield Question(expressions, kind, tuple(found[start : start + _AT_ONCE]))

    def cost(self, asked: Collection[Expressions]) -> float:
        """Seconds of CPU time that all answers took that are known of expressions."""
        return self._answers.cost(asked, [*self._kinds.values()])

    def learn(self, question: Question, answer: Answer) -> None:
        """Take the answer to a question."""
        self._answers.learn(question, answer)

    def _facts_of(self, expression: str) -> Answer:
        found = self._answers.facts(expression)
        if found is None:
            self._ask(Question((expression,)))
            return self._facts_of(expression)
        return found

    def _ask(self, question: Question) -> None:
        if question.kind is not None or question.driver or question.others:
            for expression in question.expressions:
                self.check(expression)
        if self._evaluator is None:
            raise UnansweredError(question)
        self.learn(question, self._evaluator.answer(question.job))
