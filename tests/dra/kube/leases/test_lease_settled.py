"""What the elector tells the callback about earlier terms, and the next leader about its own."""

import threading
from collections.abc import Callable

import pytest

from dra.kube.lease import SETTLED, LeaderElector, LeaseLock
from tests.dra.kube.leases.leases import LeaseServer
from tests.dra.kube.leases.test_lease import TIMES, SkippingClock
from tests.dra.kube.stub import eventually
from tests.helpers.waiting import PATIENCE

Act = Callable[[LeaderElector], None]


@pytest.fixture
def server() -> LeaseServer:
    return LeaseServer()


@pytest.fixture
def clock() -> SkippingClock:
    return SkippingClock()


def settle(elector: LeaderElector) -> None:
    elector.settle()


def nothing(_: LeaderElector) -> None:
    pass


def term(server: LeaseServer, clock: SkippingClock, act: Act = settle) -> bool:
    """Lead once, end by oneself; returns what was said about those who led before."""
    told: list[bool] = []
    elector = LeaderElector(
        LeaseLock(server, namespace="ns", name="controller", identity="a", times=TIMES, clock=clock)
    )

    def work(_: threading.Event) -> None:
        told.append(elector.settled)
        act(elector)

    elector.run(work)
    (answer,) = told
    return answer


def marked(server: LeaseServer) -> bool:
    assert server.lease is not None
    return SETTLED in server.lease["metadata"].get("annotations", {})


def test_whoever_settles_tells_the_next_leader(server: LeaseServer, clock: SkippingClock) -> None:
    assert not term(server, clock)
    assert term(server, clock, nothing)
    assert not term(server, clock)


def test_a_callback_that_fails_settles_nothing(server: LeaseServer, clock: SkippingClock) -> None:
    term(server, clock)

    def fail(_: LeaderElector) -> None:
        raise RuntimeError("controller broke")

    with pytest.raises(RuntimeError):
        term(server, clock, fail)
    assert not term(server, clock, nothing)


@pytest.mark.parametrize("how", ["emptied", "deleted"])
def test_who_had_to_take_the_lease_again_does_not_speak_for_whoever_held_it_meanwhile(
    how: str, server: LeaseServer, clock: SkippingClock
) -> None:
    done = threading.Event()

    def disturb() -> None:
        server.on_request = lambda: None
        if how == "deleted":
            server.lease = None
        else:
            server.spec["holderIdentity"] = ""
            server.touch()
        done.set()

    def disturbed(elector: LeaderElector) -> None:
        server.on_request = disturb  # at the next renewal
        assert done.wait(PATIENCE)
        eventually(lambda: server.lease is not None and server.spec["holderIdentity"] == "a")
        elector.settle()

    term(server, clock, disturbed)
    assert server.spec["holderIdentity"] == "", "it was given back all the same"
    assert not marked(server)


def test_a_second_term_of_one_program_is_told_nothing_and_owes_nothing_to_the_first(
    server: LeaseServer, clock: SkippingClock
) -> None:
    """The first may have left writes behind when its time was up."""
    term(server, clock)
    elector = LeaderElector(
        LeaseLock(server, namespace="ns", name="controller", identity="b", times=TIMES, clock=clock)
    )
    told: list[bool] = []

    def work(lost: threading.Event) -> None:
        told.append(elector.settled)
        if len(told) == 1:
            elector.settle()
            server.fault = "lost request"
            clock.skip(TIMES.renew_deadline)
            assert lost.wait(PATIENCE)
            server.fault = ""

    elector.run(work)
    assert told == [True, False]
    assert server.spec["holderIdentity"] == ""
    assert not marked(server)
