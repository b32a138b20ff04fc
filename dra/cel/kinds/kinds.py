"""Kinds of GPU, told apart, and which of their offers selectors select.

Selectors are evaluated once per kind, unless they look at what tells one GPU from another:
``questions.GpuIdentity``.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator
from dataclasses import replace

from dra.cel.kinds.asked import Expressions, Question, UnansweredError
from dra.cel.kinds.memory import KnownAnswers, Match
from dra.cel.kinds.offers import GpuKind, identity_of, kind_of, look
from dra.cel.kinds.strangers import reads_others
from dra.cel.questions import Answer, CostlySelectorError, Evaluator, GpuIdentity, SelectorError
from dra.common.cache import BoundedCache
from dra.gpu.inventory import Gpu, Inventory

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
