"""ResourceSlices that others delete, edit or add, or that were written in part."""

from __future__ import annotations

import sys
from itertools import count
from types import FrameType
from typing import Any

from dra.common.resources import RESOURCE_SLICES
from dra.gpu.inventory import AllocatorKind
from kubeletplugin.publishing.resourceslices import SlicePublisher
from tests.helpers.waiting import wait_for
from tests.kubeletplugin.helpers.publishedslices import (
    SLICES,
    devices,
    generations,
    published,
    slices,
    writes,
)
from tests.kubeletplugin.helpers.rig import DRIVER, Rig


def test_slices_that_somebody_edits_or_adds_are_put_right(scheduled: Rig) -> None:
    rig = scheduled
    first, second = slices(rig)
    pool = {"name": rig.node, "generation": 1, "resourceSliceCount": 2}
    stray = {
        "metadata": {"name": f"stray-{rig.node}"},
        "spec": {"driver": DRIVER, "nodeName": rig.node, "pool": pool, "devices": []},
    }
    rig.api.create(RESOURCE_SLICES, stray)
    wait_for("its end", lambda: len(slices(rig)) == 2)
    edit = {"spec": {"devices": second["spec"]["devices"][:3]}}
    rig.api.patch(RESOURCE_SLICES, second["metadata"]["name"], edit)
    wait_for("all devices", lambda: len(devices(rig)) == 50)
    assert len(generations(rig)) == 1
    assert first["spec"]["sharedCounters"]


def test_a_rewriting_that_broke_off_is_finished(scheduled: Rig) -> None:
    """Slices of two generations are no pool; the next start makes them one."""
    rig = scheduled
    rig.stop()
    (first, _) = slices(rig)
    first["spec"]["pool"]["generation"] = 7
    first["spec"]["sharedCounters"].pop()
    rig.api.replace(RESOURCE_SLICES, first)
    rig.start()
    wait_for("one generation", lambda: generations(rig) == {8})


def test_a_change_within_one_slice_keeps_the_generation(scheduled: Rig) -> None:
    rig = scheduled
    rig.stop()
    (_, second) = slices(rig)
    second["spec"]["devices"].pop()
    rig.api.replace(RESOURCE_SLICES, second)
    rig.http.writes = []
    rig.start()
    wait_for("all devices", lambda: len(devices(rig)) == 50)
    wait_for("slices", lambda: published(rig))
    assert generations(rig) == {1}
    assert [path for method, path in writes(rig) if method == "PUT"] == [
        f"{SLICES}/{second['metadata']['name']}"
    ]


def test_another_drivers_slices_stay(scheduled: Rig) -> None:
    rig = scheduled
    pool = {"name": rig.node, "generation": 1, "resourceSliceCount": 1}
    other = {
        "metadata": {"name": f"other-{rig.node}"},
        "spec": {"driver": "gpu.example.com", "nodeName": rig.node, "pool": pool, "devices": []},
    }
    rig.api.create(RESOURCE_SLICES, other)
    rig.stop()
    rig.allocator = AllocatorKind.CONTROLLER
    rig.start()
    assert devices(rig) == {}
    assert rig.api.get(RESOURCE_SLICES, f"other-{rig.node}")


def test_slices_that_go_at_any_moment_of_a_publication_are_written_again(scheduled: Rig) -> None:
    """The watch tells of it in a thread of its own, between any two steps of this one."""
    rig = scheduled
    rig.stop()  # so that nobody else publishes
    assert rig.daemon is not None
    publisher = rig.daemon.resource_slices
    store = publisher._known.reflector.store
    for moment in count(1):
        (found, *_) = slices(rig)

        def delete(found: Any = found) -> None:
            rig.api.delete(RESOURCE_SLICES, found["metadata"]["name"])
            store.put(found)
            for change in store.remove(found):
                publisher._known._changed(change)

        publisher._last = None  # so that it looks, and has every step before it
        if not _interrupted(publisher, moment, delete):
            break
        publisher._write("")
        assert len(slices(rig)) == 2, f"what went at step {moment} is not there again"
    assert moment > 20


def _interrupted(publisher: SlicePublisher, moment: int, interrupt: Any) -> bool:
    """Publish; ``interrupt`` is called before the step of that number, if there are so many."""
    left = moment

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal left
        if frame.f_code is not SlicePublisher._sync.__code__:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            left -= 1
            if left == 0:
                sys.settrace(None)
                interrupt()
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        publisher._write("")
    finally:
        sys.settrace(before)
    return left <= 0
