"""Questions about kinds of GPUs and about whose a class is, as they are put to an evaluator."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from dra.cel.kinds.offers import GpuKind
from dra.cel.kinds.strangers import described, made_up
from dra.cel.questions import GpuIdentity, Job, shortened

Expressions = tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Question:
    """Question to be answered before a decision can be made: a job for the evaluator.

    Of one expression alone, of a kind, of ``gpus`` of a kind, of devices of other drivers than
    ``driver`` that are made up, or of ``others``: devices of other drivers that there are, as
    ``dra.claims.otherdevices`` describes them. ``key`` is equal for equal questions.
    """

    expressions: Expressions
    kind: GpuKind | None = None
    gpus: tuple[GpuIdentity, ...] = ()
    driver: str = ""
    others: tuple[str, ...] = ()

    @property
    def key(self) -> Hashable:
        """Identity of the question among others."""
        return self.expressions, self.kind, self.gpus, self.driver, self.others

    @property
    def job(self) -> Job:
        """The question as a job for an evaluator."""
        if self.driver:
            # Together, as one that does not hold outweighs another that fails.
            together = " && ".join(f"({e}\n)" for e in self.expressions)
            return Job((together,), made_up(self.expressions, self.driver))
        if self.others:
            return Job(self.expressions, tuple(map(described, self.others)))
        return Job(self.expressions, self.kind.devices if self.kind else (), self.gpus)


class UnansweredError(Exception):
    """Questions have to be evaluated first; nothing was decided."""

    def __init__(self, question: Question) -> None:
        super().__init__(f"not evaluated yet: {', '.join(map(shortened, question.expressions))}")
        self.question = question
