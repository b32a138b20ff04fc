"""Before the first decision: what is listed is taken in at once, and what is missing is named."""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import msgspec
import pytest

from controller.leader.controller import Controller
from controller.options import Options
from dra.common.resources import (
    MIG_NODES,
    NAMESPACES,
    NODES,
    PERSISTENT_VOLUMES,
    PODS,
    Obj,
    Resource,
)
from dra.kube.client import KubeApi, ObjectList
from dra.kube.errors import ForbiddenError, UnavailableError
from dra.kube.http import HttpClient, Keep
from dra.kube.timing import SystemClock
from dra.monitoring.probes import Probes
from tests.controller.helpers.bench import EventList, no_metrics
from tests.controller.helpers.objects import DRIVER, node, versioned
from tests.helpers.waiting import wait_for


class Listed(dict[str, Any]):
    """An object of which can be told whether anybody still has it."""


class NoHttp(HttpClient):
    """Answers nothing: what a controller asks for once all is listed."""

    def __init__(self) -> None:
        pass

    def call(self, *_: Any, **__: Any) -> NoReturn:
        raise UnavailableError("no answer")


class SlowApi(KubeApi):
    """Has a node; its list of MigNodes is not answered before ``answer`` is set."""

    def __init__(self) -> None:
        super().__init__(NoHttp())
        self.answer = threading.Event()
        self.made: list[weakref.ref[Listed]] = []

    def parts(
        self, resource: Resource, *, keep: Keep | None = None, **_: Any
    ) -> Iterator[ObjectList]:
        if resource == MIG_NODES:
            self.answer.wait()
        elif resource == NODES and keep is not None:
            found = keep(msgspec.Raw(msgspec.json.encode(versioned(node("node-a")))))
            body = Listed(found or {})
            self.made.append(weakref.ref(body))
            yield ObjectList([body], "1")
            return
        yield ObjectList([], "1")

    def read(self, path: str) -> Obj:
        return {"resources": []}

    def watch(self, *_: Any, **__: Any) -> NoReturn:
        raise UnavailableError("nothing changes here")


@contextmanager
def syncing(api: SlowApi, clock: SystemClock, probes: Probes | None = None) -> Iterator[None]:
    """A controller that has taken the lead and waits for the last list."""
    stop = threading.Event()
    controller = Controller(
        api,
        EventList(),
        Options(driver_name=DRIVER),
        clock=clock,
        metrics=no_metrics(),
        probes=probes,
    )
    thread = threading.Thread(target=controller.run, args=(stop,))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        api.answer.set()
        thread.join()


class HastyClock(SystemClock):
    """A second of it is a thousand."""

    def monotonic(self) -> float:
        return super().monotonic() * 1000


def test_what_cannot_be_listed_is_named_again_and_again(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), syncing(SlowApi(), HastyClock()):
        wait_for("complaints", lambda: complaints(caplog)[-2:] == [str(MIG_NODES)] * 2)


def complaints(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [vars(r)["missing"] for r in [*caplog.records] if "can be listed" in r.message]


class StingyApi(SlowApi):
    """Lists everything but what a test denies."""

    def __init__(self, *denied: Resource) -> None:
        super().__init__()
        self.answer.set()
        self._denied = denied

    def parts(
        self, resource: Resource, *, keep: Keep | None = None, **_: Any
    ) -> Iterator[ObjectList]:
        if resource in self._denied:
            raise ForbiddenError(f"{resource} is forbidden", status=403)
        yield from super().parts(resource, keep=keep)


@pytest.mark.parametrize("denied", [PERSISTENT_VOLUMES, NAMESPACES])
def test_without_the_right_to_volumes_or_namespaces_it_goes_on_and_says_so(
    denied: Resource, caplog: pytest.LogCaptureFixture
) -> None:
    def told() -> list[str]:
        return [vars(r)["missing"] for r in [*caplog.records] if "not known in full" in r.message]

    with caplog.at_level(logging.WARNING), syncing(StingyApi(denied), SystemClock()):
        wait_for("a warning", lambda: told() == [str(denied)])
    assert complaints(caplog) == []


def test_without_the_right_to_pods_it_does_not_go_on(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), syncing(StingyApi(PODS), HastyClock()):
        wait_for("complaints", lambda: complaints(caplog)[-2:] == [str(PODS)] * 2)


def test_without_its_lists_it_is_not_ready_and_without_an_api_server_alive_all_the_same() -> None:
    """A restart would not mend that."""
    api, probes = SlowApi(), Probes()
    with syncing(api, SystemClock(), probes):
        wait_for("the mirrors", lambda: str(MIG_NODES) in "".join(probes.ready.problems()))
        api.answer.set()
        wait_for("all lists", lambda: not probes.ready.problems())
        assert not probes.live.problems()  # no watch of it is answered
