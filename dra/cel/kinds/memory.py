"""Memory of answers about kinds of GPUs, bounded by bytes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from dra.cel.kinds.asked import Expressions, Question
from dra.cel.kinds.gputable import GpuTable
from dra.cel.kinds.offers import GpuKind, Offer
from dra.cel.kinds.strangers import reads_unknown
from dra.cel.questions import Answer, CostlySelectorError, GpuIdentity
from dra.common.cache import BoundedCache

T = TypeVar("T")

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
