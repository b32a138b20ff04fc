"""The elector with real threads; its lease lasts for ever, unless the test skips time."""

import logging
import threading
from collections.abc import Callable, Iterator

import pytest

from dra.kube.errors import ForbiddenError
from dra.kube.lease import LeaderElector, LeaseLock, LeaseTimes
from dra.kube.timing import SystemClock
from tests.dra.kube.leases.leases import LeaseServer
from tests.dra.kube.stub import eventually
from tests.helpers.waiting import PATIENCE

TIMES = LeaseTimes(lease_duration=100_000, renew_deadline=80_000, retry_period=0.05)


class SkippingClock(SystemClock):
    """The machine's clock, but the test may skip time; whoever waits notices."""

    def __init__(self) -> None:
        self._skipped = 0.0

    def skip(self, seconds: float) -> None:
        self._skipped += seconds

    def monotonic(self) -> float:
        return super().monotonic() + self._skipped

    def wait(self, event: threading.Event, seconds: float) -> bool:
        end = self.monotonic() + seconds
        while (left := end - self.monotonic()) > 0:
            if event.wait(min(left, 0.02)):
                return True
        return event.is_set()


class Replica:
    """An elector in a thread of its own, whose callback works until it is told to stop."""

    def __init__(
        self, server: LeaseServer, identity: str, *, clock: SkippingClock, stubborn: bool = False
    ) -> None:
        self.elector = LeaderElector(
            LeaseLock(
                server,
                namespace="ns",
                name="controller",
                identity=identity,
                times=TIMES,
                clock=clock,
            )
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
        self.thread.join(PATIENCE)
        assert not self.thread.is_alive()


def _wait(event: threading.Event) -> None:
    """For ever: longer than anybody waits for the thread that does it."""
    event.wait(10 * PATIENCE)


Begin = Callable[..., Replica]


@pytest.fixture
def server() -> LeaseServer:
    return LeaseServer()


@pytest.fixture
def clock() -> SkippingClock:
    return SkippingClock()


@pytest.fixture
def replica(server: LeaseServer, clock: SkippingClock) -> Iterator[Begin]:
    started: list[Replica] = []

    def begin(identity: str, *, stubborn: bool = False) -> Replica:
        started.append(Replica(server, identity, clock=clock, stubborn=stubborn))
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
    first.stop()
    # The lease was given back: nobody waits for its duration.
    eventually(lambda: second.working)
    assert server.spec["holderIdentity"] == "b"
    assert not first.elector.is_leader


def test_the_lease_is_renewed_until_the_callback_has_returned(
    server: LeaseServer, replica: Begin, clock: SkippingClock
) -> None:
    first = replica("a", stubborn=True)
    eventually(lambda: first.working)
    second = replica("b")
    first.elector.stop()
    assert first.told.wait(PATIENCE)
    for _ in range(3):  # together more than a lease duration
        clock.skip(TIMES.lease_duration / 2)
        writes = server.writes
        eventually(lambda: server.writes > writes)  # noqa: B023 - called here
    assert second.terms == 0
    assert server.spec["holderIdentity"] == "a"
    first.may_return.set()
    eventually(lambda: second.working)


@pytest.mark.parametrize("outage", ["refused", "hanging"])
def test_the_callback_is_told_in_time_when_the_server_is_gone(
    server: LeaseServer, replica: Begin, clock: SkippingClock, outage: str
) -> None:
    first = replica("a")
    eventually(lambda: first.working)
    back = threading.Event()
    if outage == "refused":
        server.fault = "lost request"
    else:
        server.on_request = lambda: _wait(back)
    clock.skip(TIMES.renew_deadline / 2)
    assert not first.told.wait(0.1)
    clock.skip(TIMES.renew_deadline / 2)  # less than the lease duration: nobody else leads yet
    assert first.told.wait(PATIENCE)
    assert not first.elector.is_leader
    server.fault = ""
    server.on_request = lambda: None
    back.set()
    eventually(lambda: first.terms == 2)
    assert first.elector.is_leader


def test_the_callback_is_told_when_another_holds_the_lease(
    server: LeaseServer, replica: Begin
) -> None:
    first = replica("a")
    eventually(lambda: first.working)
    server.spec["holderIdentity"] = "usurper"
    server.touch()
    assert first.told.wait(PATIENCE)
    assert not first.elector.is_leader


def test_run_returns_when_the_callback_does_and_gives_the_lease_back(server: LeaseServer) -> None:
    elector = LeaderElector(
        LeaseLock(server, namespace="ns", name="controller", identity="a", times=TIMES)
    )
    led: list[bool] = []
    elector.run(lambda lost: led.append(elector.is_leader and not lost.is_set()))
    assert led == [True]
    assert server.spec["holderIdentity"] == ""
    assert not elector.is_leader


def test_a_callback_that_raises_gives_the_lease_back_and_is_heard(server: LeaseServer) -> None:
    elector = LeaderElector(
        LeaseLock(server, namespace="ns", name="controller", identity="a", times=TIMES)
    )

    def fail(_: threading.Event) -> None:
        raise RuntimeError("controller broke")

    with pytest.raises(RuntimeError, match="controller broke"):
        elector.run(fail)
    assert server.spec["holderIdentity"] == ""


def test_stop_does_not_wait_for_a_renewal_that_hangs(
    server: LeaseServer, replica: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dra.kube.lease._HURRY_SECONDS", 0.1)
    first = replica("a")
    eventually(lambda: first.working)
    hanging, back = threading.Event(), threading.Event()

    def hang() -> None:
        hanging.set()
        _wait(back)

    server.on_request = hang
    assert hanging.wait(PATIENCE)
    try:
        first.stop()
    finally:
        back.set()


def test_leadership_ends_by_the_clock_even_if_no_thread_of_ours_ran(server: LeaseServer) -> None:
    """As after a suspended machine: whoever asks first gets the truth."""
    clock = SkippingClock()
    elector = LeaderElector(
        LeaseLock(server, namespace="ns", name="controller", identity="a", clock=clock)
    )
    answers: list[bool] = []

    def work(_: threading.Event) -> None:
        answers.append(elector.is_leader)
        clock.skip(LeaseTimes().renew_deadline)
        answers.append(elector.is_leader)
        elector.stop()

    elector.run(work)
    assert answers == [True, False]


def test_a_hold_that_the_answer_came_too_late_for_is_lost_from_the_start(
    server: LeaseServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The thread that watches the deadline would notice too, but perhaps after the callback began.
    monkeypatch.setattr(LeaderElector, "_guard_deadline", lambda *_: None)

    clock = SkippingClock()
    server.on_answer = lambda: clock.skip(LeaseTimes().renew_deadline)
    elector = LeaderElector(
        LeaseLock(server, namespace="ns", name="controller", identity="a", clock=clock)
    )
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
    elector = LeaderElector(
        LeaseLock(server, namespace="ns", name="controller", identity="a", times=TIMES)
    )
    elector.run(lambda _: None)
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "ns/controller" in caplog.text
    assert "no get on leases" in caplog.text
