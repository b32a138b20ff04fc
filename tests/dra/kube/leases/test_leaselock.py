"""The lock alone, on clocks turned by hand."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dra.kube.errors import UnavailableError
from tests.dra.kube.clocks import FakeClock
from tests.dra.kube.leases.leases import TIMES, Fault, LeaseServer, Link, candidate


@pytest.fixture
def server() -> LeaseServer:
    return LeaseServer()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(100)


def test_a_candidate_waits_the_lease_duration_on_its_own_clock(server: LeaseServer) -> None:
    """The other machine's wall clock is a year off; nobody looks at it."""
    candidate(server, FakeClock(-3e7), "a").try_hold()
    clock = FakeClock(0)
    other = candidate(server, clock, "b")
    for at in (0.0, 5.0, 14.9):
        clock.at = at
        assert other.try_hold() is None
        assert other.taken
    clock.at = 15
    assert other.try_hold() == 15
    assert server.spec["holderIdentity"] == "b"
    assert server.spec["leaseTransitions"] == 1


def test_a_lease_that_somebody_annotated_is_still_held(
    server: LeaseServer, clock: FakeClock
) -> None:
    leader = candidate(server, clock, "a")
    leader.try_hold()
    server.touch()
    clock.at += 2
    assert leader.try_hold() is None
    assert not leader.taken
    assert leader.try_hold() == 102
    assert server.spec["leaseTransitions"] == 0


@pytest.mark.parametrize(
    ("is_held", "faults"),
    [
        (False, ("lost answer", "lost request", "lost request", "lost answer")),
        (True, ("lost request", "lost request", "lost answer")),
    ],
)
def test_a_write_whose_answer_was_lost_is_recognised(
    server: LeaseServer, clock: FakeClock, faults: tuple[Fault, ...], *, is_held: bool
) -> None:
    leader = candidate(server, clock, "a")
    if is_held:
        leader.try_hold()
    for fault in faults:
        server.fault = fault
        with pytest.raises(UnavailableError):
            leader.try_hold()
        clock.at += 2
    server.fault = ""
    while leader.try_hold() is None:
        assert not leader.taken
        clock.at += 2
    assert (server.spec["holderIdentity"], server.spec["leaseTransitions"]) == ("a", 0)
    assert clock.at < 100 + TIMES.lease_duration


# -- no schedule of slow, lost and repeated requests gives two leaders


@dataclass(frozen=True, slots=True)
class Attempt:
    """After a pause a candidate tries.

    ``before`` and ``after`` the server acts, that many steps of the schedule happen.
    """

    number: int
    pause: float = 0.0
    fault: Fault = ""
    before: int = 0
    after: int = 0


@dataclass(frozen=True, slots=True)
class Release:
    number: int


@dataclass(frozen=True, slots=True)
class Touch:
    pass


Step = Attempt | Release | Touch


CANDIDATES = 2


class World:
    """True time, and candidates whose monotonic clocks differ in offset and, by 10 %, in rate.

    While a request of one candidate is on its way, the others go on.
    """

    def __init__(
        self, rates: list[float], steps: Iterable[Step] = (), *, names: str = "ab"
    ) -> None:
        self.server = LeaseServer()
        self.steps = iter(steps)
        self.rates = rates
        self.clocks = [FakeClock(1000.0 * number) for number in range(CANDIDATES)]
        self.links = [Link(self.server) for _ in range(CANDIDATES)]
        self.locks = [
            candidate(link, clock, name)
            for link, clock, name in zip(self.links, self.clocks, names, strict=True)
        ]
        self.busy: set[int] = set()
        self.held_since: list[float | None] = [None] * CANDIDATES

    def leaders(self) -> list[int]:
        return [
            number
            for number, since in enumerate(self.held_since)
            if since is not None and self.clocks[number].at < since + TIMES.renew_deadline
        ]

    def run(self, count: int | None = None) -> None:
        """Take the next steps of the schedule."""
        for step in islice(self.steps, count):
            self.take(step)
            assert len(self.leaders()) <= 1

    def pass_time(self, seconds: float) -> None:
        for clock, rate in zip(self.clocks, self.rates, strict=True):
            clock.at += seconds * rate

    def take(self, step: Step) -> None:
        if isinstance(step, Attempt):
            self.pass_time(step.pause)
        match step:
            case Touch() if self.server.lease is not None:
                self.server.touch()
            case Attempt(number) if number not in self.busy:
                self.busy.add(number)
                self.attempt(step)
                self.busy.remove(number)
            case Release(number) if number not in self.busy:
                self.busy.add(number)
                # As the elector does it: stop acting first, then give back.
                self.held_since[number] = None
                self.links[number].fault = ""
                self.locks[number].release()
                self.busy.remove(number)

    def attempt(self, step: Attempt) -> None:
        link, lock = self.links[step.number], self.locks[step.number]
        link.fault = step.fault
        link.on_request = lambda: self.run(step.before)
        link.on_answer = lambda: self.run(step.after)
        try:
            held_since = lock.try_hold()
        except UnavailableError:
            return
        if held_since is not None:
            self.held_since[step.number] = held_since
        elif lock.taken:
            self.held_since[step.number] = None


_numbers = st.integers(0, CANDIDATES - 1)


_attempts = st.builds(
    Attempt,
    number=_numbers,
    pause=st.sampled_from([0.0, 2.0, 5.0, 9.0]),
    fault=st.sampled_from(["", "", "", "", "lost request", "lost answer"]),
    before=st.sampled_from([0, 0, 2, 3]),
    after=st.sampled_from([0, 0, 2, 3]),
)


# Mostly candidates that try while time passes, so that terms begin and end all the time.
_steps = st.one_of(*[_attempts] * 9, st.builds(Release, _numbers), st.builds(Touch))


_rates = st.lists(st.sampled_from([0.9, 1.0, 1.1]), min_size=CANDIDATES, max_size=CANDIDATES)


@settings(max_examples=120, deadline=None)
@given(
    rates=_rates,
    # The same name twice, as two processes of one pod would have.
    names=st.sampled_from(["ab", "ab", "aa"]),
    steps=st.lists(_steps, min_size=20, max_size=60),
)
def test_there_are_never_two_leaders(rates: list[float], names: str, steps: list[Step]) -> None:
    """Whatever is slow, lost, paused, released or renamed, and however the clocks run."""
    World(rates, steps, names=names).run()
