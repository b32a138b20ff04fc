"""Questions of a decision for a gang, and what it comes to."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass

from dra.allocator.allocate import Allocator
from dra.allocator.problem import Decision, Problem
from dra.claims.reasons import Obstacle, Reason
from dra.common.resources import ObjectKey
from dra.gangs.membership import GangKey
from dra.pods.pods import Pod

_LIMIT = 1000


@dataclass(frozen=True, slots=True)
class Questions:
    """Questions asked for each pod, at the time when it is decided.

    ``allocator`` gives the allocator that decides for a pod. ``attempts`` are the pod's problem on
    fewer nodes, and last on all. ``kind`` is equal for problems that fail alike, None for one that
    is like no other. ``own_allocator`` gives the allocator that leaves to the other pods of the
    gang what is held back for each of them; None where nothing is held back. ``preempts``: at last
    nodes are tried where others would be ended for the pod.
    """

    allocator: Callable[[Pod], Allocator]
    attempts: Callable[[Problem], Iterable[Problem]] = lambda problem: (problem,)
    kind: Callable[[Problem], Hashable | None] = lambda _: None
    own_allocator: Callable[[Pod], Allocator] | None = None
    preempts: bool = False


@dataclass(frozen=True, slots=True)
class Placed:
    """A pod with a place beside the others.

    ``decision`` is about the claims of ``rest``, those of its ``problem`` that are not decided for
    others before it; None where there is none.
    """

    problem: Problem
    rest: Problem
    decision: Decision | None
    node: str


@dataclass(frozen=True, slots=True)
class GangOutcome:
    """Result: places for all that are needed, or for fewer, and why ``failed`` has none.

    Places for fewer were to be had when they were tried: they are there to be counted.
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
    """Pods of a gang: those that it needs together, those there are, and those that are served."""

    minimum: int
    present: int
    served: int

    @property
    def need(self) -> int:
        """The number of those that are still to be served together."""
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

    ``others`` are those that cannot, with the obstacle to each.
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
