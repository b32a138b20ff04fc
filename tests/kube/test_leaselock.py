"""The lock alone, on clocks turned by hand."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dra.kube.errors import UnavailableError
from dra.kube.leaselock import LeaseLock, LeaseTimes
from tests.kube.clocks import FakeClock
from tests.kube.leases import Fault, LeaseServer

TIMES = LeaseTimes(lease_duration=15, renew_deadline=10, retry_period=2)


def candidate(server: LeaseServer, clock: FakeClock, identity: str) -> LeaseLock:
    return LeaseLock(
        server, namespace="ns", name="controller", identity=identity, times=TIMES, clock=clock
    )


@pytest.fixture
def server() -> LeaseServer:
    return LeaseServer()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(100)


def test_the_first_candidate_creates_the_lease(server: LeaseServer, clock: FakeClock) -> None:
    lock = candidate(server, clock, "a")
    assert lock.try_hold() == 100
    assert server.spec == {
        "holderIdentity": "a",
        "leaseDurationSeconds": 15,
        "acquireTime": "2026-01-01T00:01:40.000000Z",
        "renewTime": "2026-01-01T00:01:40.000000Z",
        "leaseTransitions": 0,
    }
    assert (lock.holder, lock.taken) == ("a", False)


def test_a_renewal_moves_only_the_renew_time(server: LeaseServer, clock: FakeClock) -> None:
    lock = candidate(server, clock, "a")
    lock.try_hold()
    before = server.spec
    clock.at += 2
    assert lock.try_hold() == 102
    assert server.spec == before | {"renewTime": "2026-01-01T00:01:42.000000Z"}
    assert server.writes == 2


def test_a_hold_counts_from_before_the_request(server: LeaseServer, clock: FakeClock) -> None:
    def slowly() -> None:
        clock.at += 3

    server.on_request = slowly
    # 3 s for the read that finds nothing, then the write begins.
    assert candidate(server, clock, "a").try_hold() == 103


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


def test_every_renewal_starts_the_wait_again(server: LeaseServer, clock: FakeClock) -> None:
    leader, other = candidate(server, clock, "a"), candidate(server, clock, "b")
    for _ in range(20):
        leader.try_hold()
        clock.at += 8
        assert other.try_hold() is None


def test_the_holders_own_promise_counts_not_the_candidates(
    server: LeaseServer, clock: FakeClock
) -> None:
    candidate(server, clock, "a").try_hold()
    server.spec["leaseDurationSeconds"] = 60
    other = candidate(server, clock, "b")
    other.try_hold()
    clock.at += 59
    assert other.try_hold() is None
    clock.at += 1
    assert other.try_hold() is not None


def test_a_released_lease_is_acquired_at_once(server: LeaseServer, clock: FakeClock) -> None:
    leader, other = candidate(server, clock, "a"), candidate(server, clock, "b")
    leader.try_hold()
    assert other.try_hold() is None
    leader.release()
    assert server.spec["holderIdentity"] == ""
    assert other.try_hold() == 100
    assert leader.try_hold() is None


def test_release_leaves_the_lease_of_another_alone(server: LeaseServer, clock: FakeClock) -> None:
    leader, other = candidate(server, clock, "a"), candidate(server, clock, "b")
    leader.try_hold()
    other.try_hold()
    clock.at += 15
    other.try_hold()
    leader.release()
    other.release()
    leader.release()
    assert server.spec["holderIdentity"] == ""
    assert server.writes == 3


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


def test_a_lease_that_somebody_deleted_is_created_again(
    server: LeaseServer, clock: FakeClock
) -> None:
    leader = candidate(server, clock, "a")
    leader.try_hold()
    server.lease = None
    assert leader.try_hold() is None
    assert leader.try_hold() == 100


def test_a_twin_with_the_same_identity_is_somebody_else(server: LeaseServer) -> None:
    candidate(server, FakeClock(1), "a").try_hold()
    twin = candidate(server, FakeClock(2), "a")
    assert twin.try_hold() is None
    assert twin.taken


def test_a_write_whose_answer_was_lost_is_recognised(server: LeaseServer, clock: FakeClock) -> None:
    leader = candidate(server, clock, "a")
    for fault in ("lost answer", "lost request", "lost request", "lost answer"):
        server.fault = fault
        with pytest.raises(UnavailableError):
            leader.try_hold()
        clock.at += 2
    server.fault = ""
    while leader.try_hold() is None:
        assert not leader.taken
        clock.at += 2
    assert server.spec["holderIdentity"] == "a"
    assert clock.at < 100 + TIMES.lease_duration


def test_losing_a_race_is_no_error(server: LeaseServer, clock: FakeClock) -> None:
    candidate(server, clock, "old").try_hold()
    rivals = [candidate(server, clock, name) for name in ("a", "b")]
    for rival in rivals:
        rival.try_hold()
    clock.at += 15

    def the_other_is_faster() -> None:
        server.on_answer = lambda: None
        assert rivals[1].try_hold() is not None

    server.on_answer = the_other_is_faster  # after the first rival's read
    assert rivals[0].try_hold() is None
    assert server.spec["holderIdentity"] == "b"


@pytest.mark.parametrize(
    "wrong",
    [
        {"lease_duration": 10, "renew_deadline": 10},
        {"retry_period": 10, "renew_deadline": 10},
        {"retry_period": 9, "renew_deadline": 10},
        {"retry_period": 0},
    ],
)
def test_times_that_could_give_two_leaders_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="renew_deadline"):
        LeaseTimes(**wrong)  # type: ignore[arg-type]


class World:
    """True time, and candidates whose monotonic clocks differ in offset and, by 10 %, in rate."""

    def __init__(self, rates: list[float]) -> None:
        self.now = 0.0
        self.server = LeaseServer()
        self.rates = rates
        self.clocks = [FakeClock(1000.0 * number) for number in range(len(rates))]
        self.locks = [
            candidate(self.server, clock, "same" if number % 2 else f"id-{number}")
            for number, clock in enumerate(self.clocks)
        ]
        self.held_since: list[float | None] = [None for _ in rates]

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        for clock, rate in zip(self.clocks, self.rates, strict=True):
            clock.at += seconds * rate

    def leaders(self) -> list[int]:
        return [
            number
            for number, since in enumerate(self.held_since)
            if since is not None and self.clocks[number].at < since + TIMES.renew_deadline
        ]

    def attempt(self, number: int, fault: Fault, before: float, after: float) -> None:
        self.server.fault = fault
        self.server.on_request = lambda: self.pass_time(before)
        self.server.on_answer = lambda: self.pass_time(after)
        try:
            held_since = self.locks[number].try_hold()
        except UnavailableError:
            return
        if held_since is not None:
            self.held_since[number] = held_since
        elif self.locks[number].taken:
            self.held_since[number] = None

    def release(self, number: int) -> None:
        # As the elector does it: stop acting first, then give back.
        self.held_since[number] = None
        self.server.fault = ""
        self.locks[number].release()


_steps = st.one_of(
    st.tuples(
        st.just("attempt"),
        st.integers(0, 2),
        st.sampled_from(["", "", "", "lost request", "lost answer"]),
        st.floats(0, 8),
        st.floats(0, 8),
    ),
    st.tuples(st.just("pass"), st.floats(0, 20)),
    st.tuples(st.just("release"), st.integers(0, 2)),
    st.tuples(st.just("touch")),
)


@settings(max_examples=400, deadline=None)
@given(rates=st.lists(st.floats(0.9, 1.1), min_size=3, max_size=3), steps=st.lists(_steps))
def test_there_are_never_two_leaders(rates: list[float], steps: list[tuple[object, ...]]) -> None:
    """Whatever is slow, lost, paused, released or renamed, and however the clocks run."""
    world = World(rates)
    for kind, *arguments in steps:
        if kind == "attempt":
            world.attempt(*arguments)  # type: ignore[arg-type]
        elif kind == "pass":
            world.pass_time(*arguments)  # type: ignore[arg-type]
        elif kind == "release":
            world.release(*arguments)  # type: ignore[arg-type]
        elif world.server.lease is not None:
            world.server.touch()
        assert len(world.leaders()) <= 1


@settings(max_examples=50, deadline=None)
@given(
    rates=st.lists(st.floats(0.9, 1.1), min_size=3, max_size=3),
    outage=st.floats(0, 100),
    crashed=st.integers(0, 2),
)
def test_somebody_leads_again_after_an_outage_and_a_crash(
    rates: list[float], outage: float, crashed: int
) -> None:
    world = World(rates)
    world.attempt(crashed, "", 0, 0)
    world.pass_time(outage)
    alive = [number for number in range(3) if number != crashed]
    for _ in range(int(TIMES.lease_duration * 1.2 / TIMES.retry_period) + 2):
        for number in alive:
            world.attempt(number, "", 0, 0)
        world.pass_time(TIMES.retry_period)
    assert world.leaders()
    assert world.leaders()[0] in alive
