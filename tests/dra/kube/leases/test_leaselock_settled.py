"""A lease that is given back settled says so to the next holder, and to nobody after that one."""

from collections.abc import Callable

import pytest

from dra.common.resources import Obj
from dra.kube import lease as leaselock
from dra.kube.errors import UnavailableError
from dra.kube.lease import SETTLED, LeaseLock
from tests.dra.kube.clocks import FakeClock
from tests.dra.kube.leases.leases import TIMES, Fault, LeaseServer, candidate


@pytest.fixture
def server() -> LeaseServer:
    return LeaseServer()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(100)


def annotations(server: LeaseServer) -> Obj:
    assert server.lease is not None
    found: Obj = server.lease["metadata"].get("annotations", {})
    return found


def unaware(act: Callable[[], object]) -> None:
    """Do something as a holder would that does not know the mark, such as an older version."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(leaselock, "_body_of", lambda lease, spec, *, settled: lease | {"spec": spec})
        act()


def write_only(server: LeaseServer, fault: Fault) -> None:
    """Have the read go well that comes first, and the write not."""

    def at_the_read() -> None:
        server.on_request = lambda: None
        server.fault = fault

    server.on_request = at_the_read


def given_back(server: LeaseServer, clock: FakeClock, *, settled: bool) -> LeaseLock:
    """Whoever held it and gave it back."""
    lock = candidate(server, clock, "a")
    assert lock.try_hold() is not None
    lock.release(settled=settled)
    return lock


def test_the_mark_says_up_to_which_transition_and_goes_with_the_next_hold(
    server: LeaseServer, clock: FakeClock
) -> None:
    given_back(server, clock, settled=True)
    assert annotations(server) == {SETTLED: "0"}
    heir = candidate(server, clock, "b")
    heir.try_hold()
    assert annotations(server) == {}
    heir.release(settled=True)
    assert annotations(server) == {SETTLED: "1"}


def test_the_annotations_of_others_stay(server: LeaseServer, clock: FakeClock) -> None:
    given_back(server, clock, settled=True)
    assert server.lease is not None
    server.lease["metadata"]["annotations"]["by"] = "somebody"
    server.touch()
    heir = candidate(server, clock, "b")
    heir.try_hold()
    assert heir.settled
    assert annotations(server) == {"by": "somebody"}


@pytest.mark.parametrize("before", ["nobody", "deleted", "ran out", "emptied"])
def test_who_takes_a_lease_that_was_not_given_back_settled_is_told_nothing(
    before: str, server: LeaseServer, clock: FakeClock
) -> None:
    heir = candidate(server, clock, "c")
    if before != "nobody":
        given_back(server, clock, settled=True)
        candidate(server, clock, "b").try_hold()
    if before == "deleted":
        server.lease = None
    elif before == "ran out":
        heir.try_hold()
        clock.at += TIMES.lease_duration
    elif before == "emptied":
        server.spec["holderIdentity"] = ""
        server.touch()
    assert heir.try_hold() is not None
    assert not heir.settled


@pytest.mark.parametrize("end", ["given back", "emptied", "ran out"])
def test_a_mark_that_was_left_says_nothing_about_a_later_holder(
    end: str, server: LeaseServer, clock: FakeClock
) -> None:
    given_back(server, clock, settled=True)
    old, heir = candidate(server, clock, "old"), candidate(server, clock, "b")
    unaware(old.try_hold)
    assert annotations(server) == {SETTLED: "0"}, "it was left"
    heir.try_hold()
    if end == "given back":
        unaware(old.release)
    elif end == "emptied":
        server.spec["holderIdentity"] = ""
        server.touch()
    else:
        clock.at += TIMES.lease_duration
    assert heir.try_hold() is not None
    assert not heir.settled


def test_a_mark_says_nothing_while_somebody_holds_the_lease(
    server: LeaseServer, clock: FakeClock
) -> None:
    given_back(server, clock, settled=True)
    server.spec["holderIdentity"] = "one that counts no transitions"
    server.touch()
    heir = candidate(server, clock, "b")
    heir.try_hold()
    clock.at += TIMES.lease_duration
    assert heir.try_hold() is not None
    assert not heir.settled


def test_a_hold_whose_answer_was_lost_is_told_nothing(
    server: LeaseServer, clock: FakeClock
) -> None:
    given_back(server, clock, settled=True)
    heir = candidate(server, clock, "b")

    write_only(server, "lost answer")
    with pytest.raises(UnavailableError):
        heir.try_hold()
    assert not heir.settled
    server.fault = ""
    clock.at += 2
    while heir.try_hold() is None:
        clock.at += 2
    assert server.spec["holderIdentity"] == "b"
    assert not heir.settled


def test_the_lease_of_another_is_not_marked(server: LeaseServer, clock: FakeClock) -> None:
    former, heir = candidate(server, clock, "a"), candidate(server, clock, "b")
    former.try_hold()
    heir.try_hold()
    clock.at += TIMES.lease_duration
    heir.try_hold()
    former.release(settled=True)
    former.release(settled=True)  # having read whose it is now
    assert annotations(server) == {}


def test_renewals_are_no_takes(server: LeaseServer, clock: FakeClock) -> None:
    lock = candidate(server, clock, "a")
    lock.try_hold()
    clock.at += 2
    lock.try_hold()
    server.touch()
    while lock.try_hold() is None:
        pass
    assert lock.takes == 1


def test_a_lease_that_is_taken_again_counts_as_a_take_even_without_an_answer(
    server: LeaseServer, clock: FakeClock
) -> None:
    lock = candidate(server, clock, "a")
    lock.try_hold()
    server.lease = None
    assert lock.try_hold() is None
    write_only(server, "lost answer")
    with pytest.raises(UnavailableError):
        lock.try_hold()
    server.fault = ""
    while lock.try_hold() is None:
        clock.at += 2
    assert lock.takes == 2
