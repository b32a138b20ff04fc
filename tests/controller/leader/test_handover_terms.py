"""Ends of the controller's loop against an API server."""

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
from tests.controller.helpers.objects import DRIVER
from tests.controller.helpers.site import Site
from tests.helpers.waiting import PATIENCE

Send = Callable[[], Obj]


class Elector:
    """State of the lead."""

    is_leader = True


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

    def __init__(self, site: Site) -> None:
        self.link = Link(site.api)
        self.elector = Elector()
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
        """Tell it to stop, without site."""
        self._stop.set()

    def end(self) -> None:
        self.stop()
        self.thread.join(PATIENCE)
        assert not self.thread.is_alive()


Begin = Callable[[], Term]


@pytest.fixture
def begin(site: Site) -> Iterator[Begin]:
    """Prepares terms; they end with the test."""
    terms: list[Term] = []

    def prepare() -> Term:
        terms.append(Term(site))
        return terms[-1]

    yield prepare
    for term in terms:
        if term.thread.ident is not None:
            term.end()


@pytest.mark.parametrize("answer", ["made", "refused", "none"])
def test_what_is_under_way_when_the_leader_is_stopped_is_waited_for(
    answer: str, site: Site, begin: Begin
) -> None:
    term, under_way, stopped = begin(), threading.Event(), threading.Event()

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
    site.add_node("node-a")
    site.claim("c")
    site.pod("c", "c")
    assert under_way.wait(PATIENCE)
    threading.Timer(0.2, stopped.set).start()
    term.end()
    assert stopped.is_set()
    assert bool(site.allocation("c")) is (answer == "made")


def test_a_write_that_comes_too_late_to_be_sent_is_nothing_to_wait_for(
    site: Site, begin: Begin
) -> None:
    term = begin()
    term.elector.is_leader = False
    term.thread.start()
    site.add_node("node-a")
    site.claim("c")
    site.pod("c", "c")
    term.thread.join(PATIENCE)  # it ends by itself
    assert not term.thread.is_alive()
    assert not site.allocation("c")
