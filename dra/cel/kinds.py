"""Kinds of GPU, and those of their offers that selectors select.

Selectors are evaluated once per kind, unless they look at what tells one GPU from another:
``questions.GpuIdentity``.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

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
from dra.cel.strangers import own_part
from dra.common.cache import BoundedCache
from dra.gpu.inventory import Gpu, Inventory

_BYTES = 16 * 2**20
"""Upper bound on each cache of answers, its keys included."""

_OVERHEAD = 500
"""Bytes of an answer besides its texts, roughly."""

_GPUS = 100_000
"""GPUs that are numbered; a cluster has fewer."""

_CLASSES = 2048
"""Most selectors of classes with a remembered answer on whether they select other drivers' devices.
"""

_AT_ONCE = 128
"""GPUs in one question: some ten milliseconds."""


@dataclass(frozen=True, slots=True)
class Match:
    """The offers that a request's selectors select.

    ``offers``: shares are among them only if nothing else is, so that a request for a slice whose
    selectors do not look at ``type`` is not given a part of one. ``error``: a selector's failure at
    run time. ``costly``: the selectors needed too much time or memory.
    """

    offers: tuple[Offer, ...]
    error: str = ""
    costly: bool = False


_Table = tuple[list[Match | None], dict[Match, Match]]
"""Matches by the number of a GPU, and the different ones among them."""


class Kinds:
    """Knows the kinds of GPU, and those of their offers that selectors select. Not thread-safe.

    A question whose answer is not remembered is put to ``evaluator`` at once. Without an evaluator
    UnansweredError is raised; its catcher has the question evaluated and gives the answer to
    ``learn``.
    """

    def __init__(self, evaluator: Evaluator | None = None) -> None:
        self._evaluator = evaluator
        self._kinds: BoundedCache[Hashable, GpuKind] = BoundedCache(2048)
        self._facts: BoundedCache[str, Answer] = BoundedCache(_BYTES, weigh=_facts_weight)
        self._matches: BoundedCache[tuple[Expressions, GpuKind], Match] = BoundedCache(
            _BYTES, weigh=lambda key, match: _weight(key[0], len(match.error))
        )
        self._tables: BoundedCache[Expressions, _Table] = BoundedCache(_BYTES, weigh=_table_weight)
        self._costs: BoundedCache[Expressions, float] = BoundedCache(
            _BYTES, weigh=lambda texts, _: _weight(texts, 0)
        )
        self._numbers: dict[tuple[GpuKind, GpuIdentity], int] = {}
        self._of_others: BoundedCache[Expressions, Mapping[str, bool] | None] = BoundedCache(
            _BYTES, weigh=_others_weight
        )
        self._others: BoundedCache[tuple[Expressions, str], bool | str] = BoundedCache(_CLASSES)

    def of(self, gpu: Gpu, inventory: Inventory) -> GpuKind:
        """The kind of ``gpu``."""
        return self._kinds.get(look(gpu, inventory), lambda: kind_of(gpu, inventory))

    def whole(self, gpu: Gpu, inventory: Inventory) -> GpuKind:
        """The kind of ``gpu`` seen as a whole, whether it is in MIG mode or not."""
        return self.of(replace(gpu, mig_enabled=False, shares=0), inventory)

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

        A condition on attributes that such devices may have is taken to hold for some device.

        Raises:
            SelectorError: an expression does not compile.
            CostlySelectorError: to compile or to try them takes more than they may have.
        """
        found = self._others.find((expressions, driver))
        if isinstance(found, str):
            raise CostlySelectorError(found)
        if found is not None:
            return found
        if own_part(expressions, driver):
            self._ask(Question(expressions, driver=driver))
        else:
            self._others.put((expressions, driver), value=True)
        return self.selects_others(expressions, driver)

    def selected_others(
        self, expressions: Expressions, texts: Collection[str]
    ) -> Collection[str] | None:
        """Those of ``texts`` whose devices all ``expressions`` select.

        ``texts`` describe existing devices of other drivers (``dra.claims.otherdevices``). None if
        an expression fails or takes too much.
        """
        known = self._of_others.get(expressions, dict)
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
        """True if one of ``expressions`` may select differently on GPUs of one kind."""
        return any(self._facts_of(e).per_gpu for e in expressions)

    def match(self, expressions: Expressions, kind: GpuKind, gpu: Gpu) -> Match:
        """Offers of ``gpu``, which is of ``kind``, that all ``expressions`` select.

        Raises:
            SelectorError: an expression does not compile.
        """
        if not self.tells_gpus_apart(expressions):
            return self.match_kind(expressions, kind)
        self._forget_numbers()
        identity = identity_of(gpu)
        found = self._of_gpu(expressions, kind, identity)
        if found is None:
            self._ask(Question(expressions, kind, (identity,)))
            return self.match(expressions, kind, gpu)
        return found

    def match_kind(self, expressions: Expressions, kind: GpuKind) -> Match:
        """Offers of ``kind`` that all ``expressions`` select, which must not tell GPUs apart.

        Raises:
            SelectorError: an expression does not compile.
        """
        found = self._matches.find((expressions, kind))
        if found is None:
            self._ask(Question(expressions, kind))
            return self.match_kind(expressions, kind)
        return found

    def selected(self, expressions: Expressions) -> Hashable:
        """A value that is equal for expressions that select the same offers of every GPU.

        Raises:
            SelectorError: an expression does not compile.
        """
        if self.tells_gpus_apart(expressions):
            return expressions
        return tuple(self.match_kind(expressions, kind).offers for kind in [*self._kinds.values()])

    def offers(self, expressions: Expressions) -> Iterator[Offer]:
        """The offers of all kinds that ``expressions`` select, which must not tell GPUs apart.

        Raises:
            SelectorError: an expression does not compile.
        """
        for kind in [*self._kinds.values()]:
            yield from self.match_kind(expressions, kind).offers

    def missing(
        self, expressions: Expressions, gpus: Iterable[tuple[GpuKind, Gpu]]
    ) -> Iterator[Question]:
        """Questions to ask before ``expressions`` can be matched to ``gpus``."""
        facts = {e: self._facts.find(e) for e in expressions}
        unknown = [e for e, found in facts.items() if found is None]
        if unknown or any(found.error for found in facts.values() if found is not None):
            yield from (Question((e,)) for e in unknown)
        elif not self.tells_gpus_apart(expressions):
            for kind in [*self._kinds.values()]:
                if self._matches.find((expressions, kind)) is None:
                    yield Question(expressions, kind)
        else:
            lacking: dict[GpuKind, list[GpuIdentity]] = {}
            for kind, gpu in gpus:
                identity = identity_of(gpu)
                if self._of_gpu(expressions, kind, identity) is None:
                    lacking.setdefault(kind, []).append(identity)
            for kind, found in lacking.items():
                for start in range(0, len(found), _AT_ONCE):
                    yield Question(expressions, kind, tuple(found[start : start + _AT_ONCE]))

    def cost(self, asked: Collection[Expressions]) -> float:
        """Seconds of CPU time that the remembered answers about ``asked`` took."""
        single = {(expression,) for expressions in asked for expression in expressions}
        return sum(self._costs.find(key) or 0.0 for key in {*single, *asked})

    def learn(self, question: Question, answer: Answer) -> None:
        """Take the answer to a question."""
        expressions, kind = question.expressions, question.kind
        if question.others:
            self._learn_of_others(question, answer)
        elif question.driver:
            chosen = any(selected.devices for selected in answer.selected)
            told = answer.error if answer.costly else chosen
            self._others.put((expressions, question.driver), told)
        elif kind is None:
            self._facts.put(expressions[0], answer)
        elif not question.gpus:
            self._matches.put((expressions, kind), _read(kind, answer, 0))
        else:
            self._forget_numbers()
            table, same = known = self._tables.find(expressions) or ([], {})
            for index, identity in enumerate(question.gpus):
                found, number = _read(kind, answer, index), self._number(kind, identity)
                table += [None] * (number + 1 - len(table))
                table[number] = same.setdefault(found, found)
            self._tables.put(expressions, known)
        if not question.driver and not question.others:
            self._costs.put(expressions, (self._costs.find(expressions) or 0.0) + answer.cost)

    def _learn_of_others(self, question: Question, answer: Answer) -> None:
        known = self._of_others.get(question.expressions, dict)
        failed = answer.error or any(selected.error for selected in answer.selected)
        if known is not None and not failed:
            chosen = {index for selected in answer.selected for index in selected.devices}
            of_these = {text: index in chosen for index, text in enumerate(question.others)}
            self._of_others.put(question.expressions, {**known, **of_these})
        else:
            self._of_others.put(question.expressions, None)

    def _of_gpu(self, expressions: Expressions, kind: GpuKind, gpu: GpuIdentity) -> Match | None:
        (table, _), number = self._tables.find(expressions) or ([], {}), self._number(kind, gpu)
        return table[number] if number < len(table) else None

    def _number(self, kind: GpuKind, gpu: GpuIdentity) -> int:
        return self._numbers.setdefault((kind, gpu), len(self._numbers))

    def _forget_numbers(self) -> None:
        """Forget all numbers of GPUs, and the tables by them, when there are many.

        Most numbers are of GPUs that are gone then. Must not be called while a number is in use.
        """
        if len(self._numbers) >= _GPUS:
            self._numbers.clear()
            self._tables.clear()

    def _facts_of(self, expression: str) -> Answer:
        found = self._facts.find(expression)
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


def _read(kind: GpuKind, answer: Answer, index: int) -> Match:
    if answer.error:
        return Match((), answer.error, costly=answer.costly)
    found = answer.selected[index]
    offers = tuple(kind.offers[n] for n in found.devices)
    return Match(tuple(o for o in offers if not o.shared) or offers, found.error)


def _weight(texts: Expressions, more: int) -> int:
    return _OVERHEAD + sum(map(len, texts)) + more


def _table_weight(texts: Expressions, table: _Table) -> int:
    results = sum(_OVERHEAD + len(match.error) for match in table[1])
    return _weight(texts, 8 * len(table[0]) + results)


def _facts_weight(expression: str, facts: Answer) -> int:
    return _weight((expression,), len(facts.error))


def _others_weight(expressions: Expressions, known: Mapping[str, bool] | None) -> int:
    return _weight(expressions, sum(100 + len(text) for text in known or ()))
