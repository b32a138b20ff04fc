"""Writes under way: what they hold, what waits for them, and what their answers do."""

from __future__ import annotations

import threading
from math import inf
from typing import Any

from controller.write.in_flight import LIMIT, Senders
from dra.common.resources import Obj
from tests.controller.helpers.desk import at_desk, settle, wants
from tests.helpers.waiting import PATIENCE

STATUS = "resourceclaims/status"


def test_no_more_is_decided_than_can_soon_be_written() -> None:
    names = [f"node-{n}" for n in range(LIMIT + 4)]
    bench, desk = at_desk(*names)
    for name in names:
        wants(bench, name)
    bench.run()
    assert len(desk.jobs) == LIMIT
    assert bench.engine.due == inf
    desk.jobs.pop(0)()
    bench.run()
    assert len(desk.jobs) == LIMIT
    settle(bench, desk)
    assert all(bench.devices(name) for name in names)


def test_an_answer_that_is_not_understood_keeps_nobody_from_being_served() -> None:
    bench, desk = at_desk("node-a", "node-b")
    wants(bench, "c")
    bench.run()
    patch = bench.api.patch

    def mangled(*args: Any, **more: Any) -> Obj:
        return {"metadata": {"uid": patch(*args, **more)["metadata"]["uid"]}}

    bench.api.patch = mangled  # type: ignore[method-assign]
    desk.work_off()
    bench.api.patch = patch  # type: ignore[method-assign]
    wants(bench, "d")
    settle(bench, desk)
    assert bench.devices("d")


def test_senders_finish_what_they_began_and_drop_the_rest() -> None:
    senders = Senders(1)
    begun, go_on = threading.Event(), threading.Event()
    done: list[str] = []

    def slow() -> None:
        begun.set()
        go_on.wait(PATIENCE)
        done.append("slow")

    senders.send(slow)
    senders.send(lambda: done.append("never"))
    assert begun.wait(PATIENCE)
    closing = threading.Thread(target=senders.close)
    closing.start()
    go_on.set()
    closing.join(PATIENCE)
    assert done == ["slow"]
