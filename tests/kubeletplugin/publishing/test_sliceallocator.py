"""Who allocates: the MigNode says so in step with the ResourceSlices, one way and back."""

from __future__ import annotations

from collections.abc import Callable

from dra.common.resources import RESOURCE_SLICES
from dra.gpu.inventory import AllocatorKind
from dra.kube.errors import ForbiddenError, KubeError, UnavailableError
from tests.helpers.waiting import wait_for
from tests.kubeletplugin.helpers.publishedslices import (
    SLICES,
    condition,
    devices,
    published,
    slices,
    writes,
)
from tests.kubeletplugin.helpers.rig import DRIVER, Rig


def test_back_with_the_controller_the_slices_go_before_the_mignode_says_so(
    scheduled: Rig,
) -> None:
    rig = scheduled
    rig.stop()
    rig.allocator = AllocatorKind.CONTROLLER
    rig.http.writes = []
    rig.start()
    assert rig.mignode()["spec"]["allocator"] == "controller"
    assert condition(rig) == {}
    order = [
        "slice" if path.startswith(SLICES) else "node"
        for method, path in rig.http.writes
        if (method == "DELETE" and path.startswith(SLICES))
        or (method == "PUT" and path.endswith(f"mignodes/{rig.node}"))
    ]
    assert order == ["slice", "slice", "node"]
    assert devices(rig) == {}


def test_without_a_look_at_old_slices_the_controller_allocates_nothing(scheduled: Rig) -> None:
    rig = scheduled
    rig.stop()
    rig.allocator = AllocatorKind.CONTROLLER

    refused: list[str] = []

    def refuse(method: str, path: str) -> KubeError | None:
        if not path.startswith(SLICES):
            return None
        refused.append(f"{method} {path}")
        return UnavailableError(refused[-1])

    rig.http.refuse = refuse
    rig.start(ready=False)
    assert rig.daemon is not None
    wait_for("attempts", lambda: len(refused) > 2)
    assert rig.mignode()["spec"]["allocator"] == "scheduler"
    rig.http.refuse = lambda _method, _path: None
    wait_for("the controller", lambda: rig.mignode()["spec"]["allocator"] == "controller")
    assert devices(rig) == {}


def test_where_the_controller_allocates_the_pool_is_there_without_devices(
    make_rig: Callable[..., Rig],
) -> None:
    """Cluster autoscaler looks for the pool of each claim on the nodes that it copies."""
    rig = make_rig()
    rig.start()
    wait_for("the pool", lambda: len(slices(rig)) == 1)
    (found,) = slices(rig)
    assert found["spec"] == {
        "driver": DRIVER,
        "nodeName": rig.node,
        "pool": {"name": rig.node, "generation": 1, "resourceSliceCount": 1},
    }
    rig.api.delete(RESOURCE_SLICES, found["metadata"]["name"])  # as kubelet does at its start
    wait_for("the pool again", lambda: len(slices(rig)) == 1)
    assert rig.prepared(rig.claim("gpu-0-mig-3g20gb-9-4"))
    assert [m for m, _ in writes(rig)] == ["POST", "POST"]


def test_a_role_without_slices_does_not_stop_the_controllers_mode(
    make_rig: Callable[..., Rig],
) -> None:
    rig = make_rig()
    rig.http.refuse = lambda _method, path: (
        ForbiddenError("no") if path.startswith(SLICES) else None
    )
    rig.start()
    assert rig.mignode()["spec"]["allocator"] == "controller"


def test_the_mignode_says_so_before_the_first_slice_is_there(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig()
    rig.start()
    assert rig.mignode()["spec"]["allocator"] == "controller"
    rig.stop()
    rig.allocator = AllocatorKind.SCHEDULER
    rig.http.writes = []
    rig.start()
    wait_for("slices", lambda: published(rig))
    order = [
        "slice" if path.startswith(SLICES) else "node"
        for method, path in rig.http.writes
        if path.startswith(SLICES) or (method == "PUT" and path.endswith(f"mignodes/{rig.node}"))
    ]
    assert order[0] == "node"
    assert order.count("node") == 1
    assert "slice" in order


def test_a_refused_write_is_seen_in_the_mignode_and_tried_again(
    make_rig: Callable[..., Rig],
) -> None:
    rig = make_rig()
    rig.allocator = AllocatorKind.SCHEDULER
    rig.http.refuse = lambda method, path: (
        ForbiddenError("slices are not for you") if (method, path) == ("POST", SLICES) else None
    )
    rig.start(ready=False)
    wait_for("the reason", lambda: condition(rig).get("reason") == "WriteFailed")
    assert "slices are not for you" in condition(rig)["message"]
    assert rig.mignode()["spec"]["allocator"] == "scheduler"
    rig.http.refuse = lambda _method, _path: None
    wait_for("slices", lambda: published(rig))
