"""Terms of the controller's loop against an API server: when the next leader needs no fence."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

from controller.leader.controller import Controller
from controller.options import Options
from dra.common.resources import RESOURCE_CLAIMS, Obj, Resource
from dra.kube.client import KubeApi
from dra.kube.errors import ForbiddenError, UnavailableError
from dra.kube.lease import LeaderElector
from dra.kube.timing import SystemClock
from tests.controller.helpers.bench import EventList, no_metrics
from tests.controller.helpers.objects import DRIVER, FINALIZER
from tests.controller.helpers.site import Site
from tests.helpers.waiting import PATIENCE, wait_for

FENCE = f"{DRIVER}/fence"
Send = Callable[[], Obj]


class Elector:
    """State of the lead: held or not, left by a former leader, settled."""

    def __init__(self, *, settled: bool) -> None:
        self.is_leader = True
        self.settled = settled
        self.was_settled = False

    def settle(self) -> None:
        self.was_settled = True


class Link:
    """A way to the API server on which ``patch_claim`` has what is sent to claims in hand.

    It is given what sends it, the claim's name and the subresource.
    """

    def __init__(self, api: KubeApi) -> None:
        self._api = api
        self.patch_claim: Callable[[Send, str, str], Obj] = lambda send, _name, _sub: send()

    def patch(self, resource: Resource, name: str, body: Any, **more: Any) -> Obj:
        def send() -> Obj:
            return self._api.patch(resource, name, body, **more)

        if resource is not RESOURCE_CLAIMS:
            return send()
        return self.patch_claim(send, name, str(more.get("subresource", "")))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._api, name)


class Term:
    """One term of a controller, in a thread of its own."""

    def __init__(self, site: Site, *, settled: bool) -> None:
        self.link = Link(site.api)
        self.elector = Elector(settled=settled)
        self._stop = threading.Event()
        controller = Controller(
            cast("KubeApi", self.link),
            EventList(),
            Options(driver_name=DRIVER),
            clock=SystemClock(),
            metrics=no_metrics(),
            elector=cast("LeaderElector", self.elector),
        )
        self.thread = threading.Thread(target=controller.run, args=(self._stop,), daemon=True)

    def stop(self) -> None:
        """Tell it to stop, without waiting."""
        self._stop.set()

    def end(self) -> bool:
        """End it; whether it was settled."""
        self.stop()
        self.thread.join(PATIENCE)
        assert not self.thread.is_alive()
        return self.elector.was_settled


Begin = Callable[..., Term]


@pytest.fixture
def begin(site: Site) -> Iterator[Begin]:
    """Prepares terms; they end with the test."""
    terms: list[Term] = []

    def prepare(*, settled: bool) -> Term:
        terms.append(Term(site, settled=settled))
        return terms[-1]

    yield prepare
    for term in terms:
        if term.thread.ident is not None:
            term.end()


@pytest.fixture
def waiting(site: Site) -> Site:
    """A node, and a claim that waits with our finalizer."""
    site.add_node("node-a")
    site.claim("waits")
    ours = {"metadata": {"finalizers": [FINALIZER]}}
    site.api.patch(RESOURCE_CLAIMS, "waits", ours, namespace="default")
    site.pod("waits", "waits", nodeSelector={"there": "is no such node"})
    return site


def claim_of(site: Site, name: str) -> Obj:
    return site.api.get(RESOURCE_CLAIMS, name, namespace="default")


def serve(site: Site, name: str) -> None:
    """A pod wants a slice and gets it: whoever leads is past its fence."""
    site.claim(name)
    site.pod(name, name)
    wait_for("allocation", lambda: site.allocation(name))


def test_whoever_was_left_nothing_unsettled_fences_nothing(waiting: Site, begin: Begin) -> None:
    before = claim_of(waiting, "waits")
    term = begin(settled=True)
    term.thread.start()
    serve(waiting, "c")
    assert term.end()
    assert claim_of(waiting, "waits") == before


def test_whoever_fenced_all_has_settled(waiting: Site, begin: Begin) -> None:
    term = begin(settled=False)
    term.thread.start()
    serve(waiting, "c")
    assert FENCE in claim_of(waiting, "waits")["metadata"]["annotations"]
    assert term.end()


def test_whoever_ends_before_the_fence_stands_has_not_settled(
    waiting: Site, begin: Begin, caplog: pytest.LogCaptureFixture
) -> None:
    term, tried = begin(settled=False), threading.Event()

    def refuse(*_: object) -> Obj:
        tried.set()
        raise UnavailableError("too busy", status=503)

    term.link.patch_claim = refuse
    term.thread.start()
    assert tried.wait(PATIENCE)
    assert not term.end()
    assert "not every claim was fenced" in caplog.text


@pytest.mark.parametrize("settled", [True, False])
def test_whoever_ends_before_it_begins_leaves_things_as_they_were(
    *, settled: bool, waiting: Site, begin: Begin
) -> None:
    term = begin(settled=settled)
    term.stop()
    term.thread.start()
    assert term.end() is settled


@pytest.mark.parametrize("answer", ["made", "refused", "none"])
def test_what_is_under_way_when_the_leader_is_stopped_is_waited_for(
    answer: str, waiting: Site, begin: Begin, caplog: pytest.LogCaptureFixture
) -> None:
    term, under_way, stopped = begin(settled=True), threading.Event(), threading.Event()

    def hold(send: Send, _: str, subresource: str) -> Obj:
        if subresource != "status":
            return send()
        under_way.set()
        assert stopped.wait(PATIENCE)
        if answer == "refused":
            raise ForbiddenError("no", status=403)
        if answer == "none":
            raise UnavailableError("no answer")
        return send()

    term.link.patch_claim = hold
    term.thread.start()
    waiting.claim("c")
    waiting.pod("c", "c")
    assert under_way.wait(PATIENCE)
    term.stop()
    assert not term.elector.was_settled
    stopped.set()
    assert term.end() is (answer != "none")
    assert bool(waiting.allocation("c")) is (answer == "made")
    told = [r.__dict__["claims"] for r in caplog.records if "was not answered" in r.message]
    assert told == (["default/c"] if answer == "none" else [])


def test_a_write_that_comes_too_late_to_be_sent_is_nothing_to_wait_for(
    waiting: Site, begin: Begin
) -> None:
    term = begin(settled=True)
    term.elector.is_leader = False
    term.thread.start()
    waiting.claim("c")
    waiting.pod("c", "c")
    term.thread.join(PATIENCE)  # it ends by itself
    assert not term.thread.is_alive()
    assert term.elector.was_settled
