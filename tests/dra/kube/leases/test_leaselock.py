"""The lock alone, on clocks turned by hand."""

import pytest

from dra.kube.errors import UnavailableError
from tests.dra.kube.clocks import FakeClock
from tests.dra.kube.leases.leases import TIMES, Fault, LeaseServer, Link, candidate


@pytest.fixture
def server() -> LeaseServer:
    return LeaseServer()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(100)


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


def test_the_wait_counts_from_after_the_answer(server: LeaseServer, clock: FakeClock) -> None:
    """The holder may have renewed while the candidate's slow read was on its way."""
    leader = candidate(server, clock, "a")
    leader.try_hold()
    link = Link(server)
    other = candidate(link, clock, "b")

    def renewed_meanwhile() -> None:
        clock.at += 8
        leader.try_hold()

    link.on_request = renewed_meanwhile
    assert other.try_hold() is None
    link.on_request = lambda: None
    clock.at += 14
    assert other.try_hold() is None
    clock.at += 1
    assert other.try_hold() == 123


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
