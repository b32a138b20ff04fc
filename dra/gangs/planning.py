"""Places to wait for: for as many of a gang's pods as it needs at once, once others have ended.

A pod by itself is a gang of one. The search is made in parts; what changes between them may make
the places worse ones.
"""

from __future__ import annotations

from collections.abc import Generator, Hashable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace

from dra.allocator.allocate import Allocator
from dra.allocator.contention import Outlook
from dra.allocator.problem import Problem
from dra.common.resources import ObjectKey
from dra.gangs.decision import Placed, Questions, Trial

MOST_STEPS = 400_000
"""Steps after which the search is given up: some seconds, half of them left to other work."""


class Planning:
    """Search for places for ``need`` of ``candidates``, which are at least one. Not thread-safe.

    The caller's books count no claim of the candidates while ``go_on`` runs. ``stays``: UIDs of
    claims that are not waited for. ``questions.attempts`` is not used.
    """

    def __init__(
        self,
        candidates: Sequence[Problem],
        need: int,
        trial: Trial,
        questions: Questions,
        *,
        stays: AbstractSet[str],
    ) -> None:
        self._candidates = candidates
        self._need = need
        self._trial = trial
        self._questions = questions
        self._stays = stays
        self._placed: list[Placed] = []
        self._allocators: dict[ObjectKey, Allocator] = {}
        self._outlook = self._anew()
        self._spent = 0
        self._work = self._plan()

    def go_on(self, *, steps: int | None = None) -> tuple[Placed, ...] | None:
        """Continue; returns None if the search has not ended after ``steps``.

        Returns no pods where there would be no place for ``need`` pods even if all nodes were empty
        of claims that do not stay, or where the search is given up. The books are restored
        afterwards. After an exception the search must not be continued.

        Raises:
            SelectorError: a selector does not compile.
            UnansweredError: a selector is still to be evaluated.
        """
        end = min(MOST_STEPS, MOST_STEPS if steps is None else self._steps + steps)
        try:
            for each in self._placed:
                self._trial.place(each.rest, each.decision, each.node)
            while self._steps < end:
                next(self._work)
        except StopIteration as found:
            placed: tuple[Placed, ...] = found.value
            return placed
        finally:
            self._trial.undo()
            self._allocators.clear()
        return None if self._steps < MOST_STEPS else ()

    @property
    def _steps(self) -> int:
        return self._spent + self._outlook.steps

    def _plan(self) -> Generator[None, None, tuple[Placed, ...]]:
        order = [*self._candidates]
        for _ in range(len(order)):  # pods without a place go first the next time
            failures = yield from self._try(order)
            if len(self._placed) >= self._need:
                return tuple(self._placed)
            again = sorted(order, key=lambda problem: problem not in failures)
            if not self._placed or again == order:
                break
            order = again
            self._trial.undo()
            self._placed.clear()
            self._spent = self._steps
            self._outlook = self._anew()
        return ()

    def _try(self, order: Sequence[Problem]) -> Generator[None, None, list[Problem]]:
        """Find places for as many pods as are needed; returns the pods that have none."""
        failures: list[Problem] = []
        kinds: set[Hashable] = set()
        for problem in order:
            if len(self._placed) >= self._need:
                break
            kind = self._kind(problem)
            if kind not in kinds and (yield from self._place(problem)):
                continue
            failures.append(problem)
            # A pod with rules about other pods may have a place later.
            if kind is not None and problem.rules is None:
                kinds.add(kind)
        return failures

    def _place(self, problem: Problem) -> Generator[None, None, bool]:
        rest = self._trial.rest(problem)
        if rest.claims:
            plan = yield from self._outlook.find(rest, beside=self._trial.claims)
            if plan is None:
                return False
            placed = Placed(problem, rest, plan.decision, plan.decision.node)
        else:
            allocator = self._allocator(rest)
            fits = (n for n in allocator.fleet.nodes if not allocator.find_misfit(rest, n))
            node = next(fits, None)
            if node is None:
                return False
            placed = Placed(problem, rest, None, node)
        self._placed.append(placed)
        if len(self._placed) < self._need:
            self._trial.place(rest, placed.decision, placed.node)
            self._allocators.clear()
        return True

    def _anew(self) -> Outlook:
        return Outlook(self._allocator, self._kind, self._stays)

    def _allocator(self, problem: Problem) -> Allocator:
        """The allocator for a problem now, kept until a pod is placed or the part ends."""
        key = problem.pod.key
        if key not in self._allocators:
            self._allocators[key] = self._questions.allocator(problem.pod)
        return self._allocators[key]

    def _kind(self, problem: Problem) -> Hashable | None:
        """Equal for pods that the same nodes would serve, but for rules about others."""
        return self._questions.kind(replace(problem, rules=None))
