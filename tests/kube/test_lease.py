"""The elector with real threads; its times are short, what it waits for is waited for."""

import logging
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from dra.kube.errors import ForbiddenError
from dra.kube.lease import LeaderElector, LeaseTimes
from dra.kube.timing import SystemClock
from tests.kube.leases import LeaseServer
from tests.kube.stub import eventually

QUICK = LeaseTimes(lease_duration=2, renew_deadline=0.5, retry_period=0.05)


def _wait(event: threading.Event) -> None:
    assert event.wait(30)


class Replica:
    """An elector in a thread of its own, whose callback works until it is told to stop."""

    def __init__(
        self,
        server: LeaseServer,
        identity: str,
        *,
        stubborn: bool = False,
        times: LeaseTimes = QUICK,
    ) -> None:
        self.elector = LeaderElector(
            server, namespace="ns", name="controller", identity=identity, times=times
        )
        self.may_return = threading.Event()
        if not stubborn:
            self.may_return.set()
        self.terms = 0
        self.working = False
        self.told = threading.Event()
        self.thread = threading.Thread(target=self.elector.run, args=(self.work,), daemon=True)
        self.thread.start()

    def work(self, lost: threading.Event) -> None:
        self.told.clear()
        self.terms += 1
        self.working = True
        lost.wait()
        self.told.set()
        self.may_return.wait()
        self.working = False

    def stop(self) -> None:
        self.may_return.set()
        self.elector.stop()
        self.thread.join(10)
        assert not self.thread.is_alive()


Begin = Callable[..., Replica]


@pytest.fixture
def server() -> LeaseServer:
    return LeaseServer()


@pytest.fixture
def replica(server: LeaseServer) -> Iterator[Begin]:
    started: list[Replica] = []

    def begin(identity: str, *, stubborn: bool = False, times: LeaseTimes = QUICK) -> Replica:
        started.append(Replica(server, identity, stubborn=stubborn, times=times))
        return started[-1]

    yield begin
    server.fault = ""
    server.on_request = lambda: None
    for one in started:
        one.stop()


def test_one_replica_works_and_the_other_takes_over_when_it_stops(
    server: LeaseServer, replica: Begin
) -> None:
    first = replica("a")
    eventually(lambda: first.working)
    second = replica("b")
    eventually(lambda: server.writes > 4)
    assert first.elector.is_leader
    assert not second.elector.is_leader
    assert second.terms == 0
    began = time.monotonic()
    first.stop()
    eventually(lambda: second.working)
    # The lease was given back: nobody waited for its duration.
    assert time.monotonic() - began < QUICK.lease_duration * 0.7
    assert server.spec["holderIdentity"] == "b"
    assert not first.elector.is_leader


def test_the_lease_is_renewed_until_the_callback_has_returned(
    server: LeaseServer, replica: Begin
) -> None:
    first = replica("a", stubborn=True)
    eventually(lambda: first.working)
    second = replica("b")
    first.elector.stop()
    assert first.told.wait(5)
    writes = server.writes
    eventually(lambda: server.writes > writes + 45)  # more than a lease duration
    assert second.terms == 0
    assert server.spec["holderIdentity"] == "a"
    first.may_return.set()
    eventually(lambda: second.working)


@pytest.mark.parametrize("outage", ["refused", "hanging"])
def test_the_callback_is_told_in_time_when_the_server_is_gone(
    server: LeaseServer, replica: Begin, outage: str
) -> None:
    first = replica("a")
    eventually(lambda: first.working)
    back = threading.Event()
    began = time.monotonic()
    if outage == "refused":
        server.fault = "lost request"
    else:
        server.on_request = lambda: _wait(back)
    assert first.told.wait(5)
    assert 0.3 < time.monotonic() - began < QUICK.lease_duration
    assert not first.elector.is_leader
    server.fault = ""
    server.on_request = lambda: None
    back.set()
    eventually(lambda: first.terms == 2)
    assert first.elector.is_leader


def test_the_callback_is_told_when_another_holds_the_lease(
    server: LeaseServer, replica: Begin
) -> None:
    first = replica("a", times=LeaseTimes(60, renew_deadline=50, retry_period=0.05))
    eventually(lambda: first.working)
    server.spec["holderIdentity"] = "usurper"
    server.touch()
    assert first.told.wait(10)
    assert not first.elector.is_leader


def test_run_returns_when_the_callback_does_and_gives_the_lease_back(server: LeaseServer) -> None:
    elector = LeaderElector(server, namespace="ns", name="controller", identity="a", times=QUICK)
    led: list[bool] = []
    elector.run(lambda lost: led.append(elector.is_leader and not lost.is_set()))
    assert led == [True]
    assert server.spec["holderIdentity"] == ""
    assert not elector.is_leader


def test_a_callback_that_raises_gives_the_lease_back_and_is_heard(server: LeaseServer) -> None:
    elector = LeaderElector(server, namespace="ns", name="controller", identity="a", times=QUICK)

    def fail(_: threading.Event) -> None:
        raise RuntimeError("controller broke")

    with pytest.raises(RuntimeError, match="controller broke"):
        elector.run(fail)
    assert server.spec["holderIdentity"] == ""


def test_stop_before_run_never_leads(server: LeaseServer) -> None:
    elector = LeaderElector(server, namespace="ns", name="controller", identity="a", times=QUICK)
    elector.stop()
    elector.run(lambda _: pytest.fail("led after stop"))
    assert server.writes == 0


def test_stop_does_not_wait_for_a_renewal_that_hangs(
    server: LeaseServer, replica: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dra.kube.lease._HURRY_SECONDS", 0.1)
    first = replica("a")
    eventually(lambda: first.working)
    hanging, back = threading.Event(), threading.Event()

    def hang() -> None:
        hanging.set()
        back.wait(30)

    server.on_request = hang
    assert hanging.wait(5)
    began = time.monotonic()
    first.stop()
    assert time.monotonic() - began < 2
    back.set()


def test_leadership_ends_by_the_clock_even_if_no_thread_of_ours_ran(server: LeaseServer) -> None:
    """As after a suspended machine: whoever asks first gets the truth."""

    class Late(SystemClock):
        late = 0.0

        def monotonic(self) -> float:
            return super().monotonic() + self.late

    clock = Late()
    elector = LeaderElector(server, namespace="ns", name="controller", identity="a", clock=clock)
    answers: list[bool] = []

    def work(_: threading.Event) -> None:
        answers.append(elector.is_leader)
        clock.late = LeaseTimes().renew_deadline
        answers.append(elector.is_leader)
        elector.stop()

    elector.run(work)
    assert answers == [True, False]


def test_a_hold_that_the_answer_came_too_late_for_is_lost_from_the_start(
    server: LeaseServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The thread that watches the deadline would notice too, but perhaps after the callback began.
    monkeypatch.setattr(LeaderElector, "_guard_deadline", lambda *_: None)

    class Late(SystemClock):
        late = 0.0

        def monotonic(self) -> float:
            return super().monotonic() + self.late

    def answer_late() -> None:
        clock.late += LeaseTimes().renew_deadline

    clock = Late()
    server.on_answer = answer_late
    elector = LeaderElector(server, namespace="ns", name="controller", identity="a", clock=clock)
    told: list[bool] = []

    def work(lost: threading.Event) -> None:
        told.append(lost.is_set())
        elector.stop()

    elector.run(work)
    assert told == [True]


def test_a_long_wait_is_told_once(server: LeaseServer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "dra.kube.lease")
    attempts: list[None] = []

    def forbid() -> None:
        attempts.append(None)
        if len(attempts) == 20:
            elector.stop()
        raise ForbiddenError("no get on leases", status=403)

    server.on_request = forbid
    elector = LeaderElector(server, namespace="ns", name="controller", identity="a", times=QUICK)
    elector.run(lambda _: None)
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "ns/controller" in caplog.text
    assert "no get on leases" in caplog.text
