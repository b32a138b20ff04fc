"""Decision for a gang: places for as many of its pods as it needs at once, or for fewer.

It is made in parts. At the beginning of each part the places found earlier are taken again, and
pods whose place no longer fits are decided anew, so that in the end all places fit together at the
same time. Pods are placed in the caller's books (``Fleet`` and ``Hosts``), which nobody else uses
during a part: ``Trial.undo`` restores them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Hashable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from math import inf

from dra.allocator.allocate import Allocator, OngoingDecision, over_quota
from dra.allocator.explain.answers import as_obstacle
from dra.allocator.explain.judge import explain
from dra.allocator.fleet import Fleet
from dra.allocator.ongoing import Ongoing, Steps
from dra.allocator.problem import Decision, Examined, Outcome, Problem, Satisfied
from dra.claims.allocation import node_selector
from dra.claims.reasons import Obstacle, Reason
from dra.common.resources import ObjectKey
from dra.gangs.membership import MOST_PODS, GangKey
from dra.pods.pods import Pod
from dra.pods.residents import Hosts
from dra.pods.rules import find_rules

_LIMIT = 1000


@dataclass(frozen=True, slots=True)
class Questions:
    """Questions asked for each pod, at the time when it is decided.

    ``allocator``: gives the allocator that decides for a pod. ``attempts``: gives the pod's problem
    on fewer nodes, and last on all. ``kind``: gives a key that is equal for problems that fail
    alike, None for one that is like no other. ``own_allocator``: gives the allocator that leaves to
    the other pods of the gang what is held back for each of them; None where nothing is held back.
    ``preempts``: at last nodes are tried where others would be ended for the pod.
    """

    allocator: Callable[[Pod], Allocator]
    attempts: Callable[[Problem], Iterable[Problem]] = lambda problem: (problem,)
    kind: Callable[[Problem], Hashable | None] = lambda _: None
    own_allocator: Callable[[Pod], Allocator] | None = None
    preempts: bool = False


@dataclass(frozen=True, slots=True)
class Placed:
    """A pod with a place beside the others.

    ``rest``: its ``problem`` without the claims that were decided for pods before it. ``decision``:
    for the claims of ``rest``, None where it has none.
    """

    problem: Problem
    rest: Problem
    decision: Decision | None
    node: str


@dataclass(frozen=True, slots=True)
class GangOutcome:
    """Result: places for all pods that are needed, or for fewer.

    ``failed``: problem of a pod that has no place, for the reason ``obstacle``; None if there is
    room for all. If it is set, ``placed`` is only to be counted: those places may be taken by now.
    """

    placed: tuple[Placed, ...]
    failed: Problem | None = None
    obstacle: Obstacle | None = None

    @property
    def fits(self) -> bool:
        """True if there is room for all that are needed."""
        return self.failed is None


@dataclass(frozen=True, slots=True)
class Count:
    """Numbers of a gang's pods.

    ``minimum``: that it needs together. ``present``: that exist and could be served. ``served``:
    that have what they asked for.
    """

    minimum: int
    present: int
    served: int

    @property
    def need(self) -> int:
        """The number of pods that are still to be served together."""
        return self.minimum - self.served


def about_absent(gang: GangKey, count: Count) -> Obstacle:
    """Obstacle of a gang of which too few pods are there."""
    text = (
        f"{gang} is allocated once {count.minimum} of its pods can be; there "
        f"{_are(count.present)}: {count.minimum - count.present} more to be created, or to lose "
        "scheduling gates of others"
    )
    return Obstacle(Reason.WAITING_FOR_GANG, text)


def about_hindered(
    gang: GangKey, count: Count, able: int, others: Mapping[ObjectKey, Obstacle | None]
) -> Obstacle:
    """Obstacle of a gang of which too few pods can be served, whatever is free.

    ``able``: number of pods that can be. ``others``: the pods that cannot, with the obstacle to
    each.
    """
    text = f"{gang} needs slices for {count.need} pods at once, and {able} of its pods can have any"
    known = ((key, obstacle) for key, obstacle in others.items() if obstacle is not None)
    key, why = next(known, (None, None))
    if key is not None and why is not None:
        text = f"{text}; pod {'/'.join(key)}: {why.message}"
    return Obstacle(Reason.WAITING_FOR_GANG, _cut(text))


def about_room(gang: GangKey, count: Count, outcome: GangOutcome) -> Obstacle:
    """Obstacle of a gang for which there is no room."""
    fitting = len(outcome.placed)
    served = f", beside {count.served} that {_have(count.served)} theirs" if count.served else ""
    text = f"{gang} needs slices for {count.need} pods at once{served}, and {fitting} fit"
    if outcome.failed is None or outcome.obstacle is None:
        return Obstacle(Reason.WAITING, text)
    why = outcome.obstacle
    beside = " beside these" if fitting else ""
    text = f"{text}; pod {outcome.failed.pod} does not fit{beside}: {why.message}"
    return Obstacle(why.reason, _cut(text))


def _cut(text: str) -> str:
    return text if len(text) <= _LIMIT else text[: _LIMIT - 3] + "..."


def _are(number: int) -> str:
    return "is 1" if number == 1 else f"are {number}"


def _have(number: int) -> str:
    return "has" if number == 1 else "have"


@dataclass(frozen=True, slots=True)
class Lacking:
    """Pods of a gang by what they need.

    ``problems``: of the pods that can be served. ``others``: the obstacle of each other pod that
    lacks something; None if one of its objects is not created yet. ``served``: number of the pods
    that lack nothing.
    """

    problems: tuple[Problem, ...]
    others: dict[ObjectKey, Obstacle | None]
    served: int = 0


def sort_out(pods: Iterable[Pod], examine: Callable[[Pod], Examined]) -> Lacking:
    """``pods``, the most urgent first, by what they need.

    Of those that can be served, the first ``MOST_PODS``.
    """
    problems: list[Problem] = []
    others: dict[ObjectKey, Obstacle | None] = {}
    served = 0
    for pod in pods:
        examined = examine(pod)
        if isinstance(examined.found, Problem):
            problems.append(examined.found)
        elif isinstance(examined.found, Satisfied):
            served += 1
        else:
            others[pod.key] = examined.hindrance
    return Lacking(tuple(problems[:MOST_PODS]), others, served)


class Trial:
    """Pods placed in ``fleet`` and ``hosts`` until ``undo``. Not thread-safe.

    ``pods``: number of pods that are to be placed together.
    """

    def __init__(self, fleet: Fleet, hosts: Hosts, *, pods: int = 1) -> None:
        self._fleet = fleet
        self._hosts = hosts
        self._pods = pods
        self._held: dict[str, str] = {}
        self._placed: list[tuple[Pod, str]] = []

    @property
    def claims(self) -> AbstractSet[str]:
        """UIDs of the claims that are placed."""
        return self._held.keys()

    def traits(self, node: str) -> Hashable:
        """Equal while the GPUs of a node are in equal states."""
        known = self._fleet.nodes.get(node)
        return tuple(state.traits for state in known.gpus) if known is not None else None

    def place(self, problem: Problem, decision: Decision | None, node: str) -> None:
        """Count what ``decision`` gives to the pod of ``problem``, and the pod on ``node``."""
        if decision is not None:
            given = decision.allocations(problem.claims, self._fleet.driver)
            for ref, allocation in given.items():
                self._fleet.hold(ref, allocation)
                self._held[ref.uid] = decision.node
        before = self._hosts.residents.find(problem.pod.key)
        self._placed.append((problem.pod, before[0] if before is not None else ""))
        self._hosts.place(problem.pod, node)

    def rest(self, problem: Problem) -> Problem:
        """The part of ``problem`` that is not decided yet.

        Claims that it shares with pods placed before are decided, and bind it to their nodes.
        """
        pod, held = problem.pod, self._held
        nodes = dict.fromkeys(
            held[w.claim.ref.uid] for w in problem.claims if w.claim.ref.uid in held
        )
        left = tuple(w for w in problem.claims if w.claim.ref.uid not in held)
        pins = (*problem.pins, *map(node_selector, nodes))
        rules = find_rules(pod, self._hosts, together=self._pods)
        return replace(problem, claims=left, pins=pins, rules=rules)

    def effort(self, problem: Problem) -> int:
        """The number of comparisons with nodes that show where a pod may go, at the most."""
        return problem.pod.needs.parts * len(self._hosts.facts)

    def undo(self) -> None:
        """Take everything out again."""
        for uid in self._held:
            self._fleet.release(uid)
        for pod, node in reversed(self._placed):
            self._hosts.place(pod, node)
        self._held.clear()
        self._placed.clear()


def shared_node(problem: Problem, allocator: Allocator) -> str:
    """The node where a pod has to go whose claims are all decided; "" where it cannot."""
    nodes = (n for n in allocator.fleet.nodes if allocator.find_misfit(problem, n) is None)
    return next(nodes, "")


POD_STEPS = 50
"""Steps that a pod counts besides those of its search: some tenths of a millisecond."""

_COMPARED_PER_STEP = 30
"""Comparisons of a pod with nodes that take as long as a step."""

_ORDERS = 3
"""Number of orders in which the pods are tried: pods without room go first the next time."""

_PARTS = 200
_PARTS_OF_A_POD = 2 * _ORDERS
"""Parts, in all and for each pod more, after which the rest is decided in one part."""


class GangDecision(Ongoing[GangOutcome]):
    """Places for ``need`` of the pods of ``candidates``, at least one. Not thread-safe."""

    def __init__(
        self, candidates: Sequence[Problem], need: int, trial: Trial, questions: Questions
    ) -> None:
        self._candidates = candidates
        self._need = need
        self._trial = trial
        self._questions = questions
        self._placed: list[Placed] = []
        self._pending: deque[Problem] = deque()
        self._seen: dict[str, Hashable] = {}
        self._failed = Outcome(None)
        """The last search without a decision."""
        self._parts = 0
        self._allocator = questions.allocator
        self._alone = False
        self._kinds: dict[ObjectKey, Hashable | None] = {}
        self._attempt = candidates[0]
        super().__init__(self._decide(), Steps())

    def _take_up(self) -> None:
        self._parts += 1
        if self._parts >= _PARTS + _PARTS_OF_A_POD * len(self._candidates):
            self._budget.end = inf
        self._place_again()

    def _leave(self) -> None:
        self._trial.undo()

    def _decide(self) -> Generator[None, None, GangOutcome]:
        order = [*self._candidates]
        best: GangOutcome | None = None
        for _ in range(_ORDERS):
            failures = yield from self._try_anew(order)
            if len(self._placed) >= self._need:
                return GangOutcome(tuple(self._placed))
            if best is None or len(self._placed) > len(best.placed):
                failed = failures[-1] if failures else order[-1]
                best = GangOutcome(tuple(self._placed), failed, self._why(failed))
            again = sorted(order, key=lambda problem: problem not in failures)
            if not self._placed or again == order:
                break
            order = again
        if self._questions.own_allocator is not None:
            # What is held back is room for all pods: none may take what is to be that of another.
            self._allocator, self._alone = self._questions.own_allocator, True
            yield from self._try_anew(self._candidates)
            if len(self._placed) >= self._need:
                return GangOutcome(tuple(self._placed))
        if best is None:
            raise AssertionError("at least one order is tried")
        return best

    def _try_anew(self, order: Sequence[Problem]) -> Generator[None, None, list[Problem]]:
        """Place as many pods as are needed; returns those that found no room."""
        self._trial.undo()
        self._placed.clear()
        self._seen.clear()
        failures: list[Problem] = []
        kinds: set[Hashable] = set()
        self._pending = deque(order)
        while self._pending and len(self._placed) < self._need:
            problem = self._pending.popleft()
            kind = None if self._alone else self._kind(problem)
            if kind in kinds:
                failures.append(problem)
                continue
            if (yield from self._place(problem)):
                continue
            failures.append(problem)
            # A pod with rules about other pods may fit once those are placed.
            if kind is not None and problem.rules is None:
                kinds.add(kind)
        return failures

    def _kind(self, problem: Problem) -> Hashable | None:
        key = problem.pod.key
        if key not in self._kinds:
            self._kinds[key] = self._questions.kind(problem)
        return self._kinds[key]

    def _place(self, problem: Problem) -> Generator[None, None, bool]:
        """Place a pod beside the others; False where there is no room."""
        self._budget.used += POD_STEPS + self._trial.effort(problem) // _COMPARED_PER_STEP
        if self._budget.left <= 0:
            yield
        while True:
            rest = self._trial.rest(problem)
            if not rest.claims:
                node = shared_node(rest, self._allocator(rest.pod))
                if node:
                    self._count(Placed(problem, rest, None, node))
                return bool(node)
            outcome = yield from self._search(problem, rest)
            if outcome is None:
                continue
            if outcome.decision is None:
                self._failed = outcome
                return False
            tried = self._like(rest, self._attempt)
            node = outcome.decision.node
            self._count(Placed(problem, tried, outcome.decision, node))
            return True

    def _search(self, problem: Problem, rest: Problem) -> Generator[None, None, Outcome | None]:
        """Outcome for ``rest`` of ``problem``; None when another part is left meanwhile."""
        attempts, allocator = [*self._questions.attempts(rest)], self._allocator(problem.pod)
        ongoing = OngoingDecision(attempts, allocator, preempts=self._questions.preempts)
        while True:
            before = ongoing.steps
            outcome = ongoing.go_on(steps=max(1, self._budget.left))
            self._budget.used += ongoing.steps - before
            if outcome is not None:
                self._attempt = ongoing.posed
                return outcome
            yield
            now = self._trial.rest(problem)
            if now.claims != rest.claims:
                return None
            ongoing.attempts = [*self._questions.attempts(now)]
            ongoing.places = self._allocator(problem.pod)

    def _like(self, rest: Problem, attempt: Problem) -> Problem:
        """``rest`` as of now, with room made if ``attempt`` has it made."""
        return replace(rest, rules=attempt.rules, makes_room=True) if attempt.makes_room else rest

    def _count(self, placed: Placed) -> None:
        self._seen.setdefault(placed.node, self._trial.traits(placed.node))
        self._trial.place(placed.rest, placed.decision, placed.node)
        self._placed.append(placed)

    def _place_again(self) -> None:
        """Place again what earlier parts found, as far as it is still possible."""
        found, self._placed = self._placed, []
        changed = {n for n, seen in self._seen.items() if self._trial.traits(n) != seen}
        self._seen = {n: seen for n, seen in self._seen.items() if n not in changed}
        again: list[Problem] = []
        for each in found:
            rest = self._like(self._trial.rest(each.problem), each.rest)
            allocator = self._allocator(rest.pod)
            if (
                each.node in changed
                or rest.claims != each.rest.claims
                or allocator.find_misfit(rest, each.node)
                or (each.decision and over_quota(rest.claims, each.decision, allocator.fleet))
            ):
                again.append(each.problem)
            else:
                self._count(replace(each, rest=rest))
        self._pending.extendleft(reversed(again))

    def _why(self, failed: Problem) -> Obstacle:
        """Obstacle that keeps the pod of ``failed`` from a place beside the pods that have one."""
        rest = self._trial.rest(failed)
        allocator = self._allocator(rest.pod)
        found = self._failed
        return found.over or as_obstacle(explain(rest, allocator, given_up=found.given_up))
