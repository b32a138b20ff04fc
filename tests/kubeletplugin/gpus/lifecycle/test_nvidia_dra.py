"""NVIDIA's DRA driver beside us: nothing is offered, and nothing of it destroyed, until it goes."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from dra.common.resources import RESOURCE_SLICES, Obj
from dra.gpu.inventory import AllocatorKind, GpuReason
from dra.gpu.names import NVIDIA_DRIVER
from dra.kube.client import KubeApi
from dra.resourceslices.nvidiadra import DEPLOY_LABEL
from kubeletplugin.daemon import daemon
from kubeletplugin.errors import HostError
from kubeletplugin.gpus.gpu import Conflict
from kubeletplugin.gpus.node import NodeWatch, refuse_namesake
from kubeletplugin.journal.entries import State
from kubeletplugin.options import Options
from kubeletplugin.publishing.slicewriter import SliceWriter
from kubeletplugin.telemetry.reports import Reports
from kubeletplugin.telemetry.telemetry import Telemetry
from tests.dra.resourceslices.nvidiaslices import (
    counter_slice,
    future_mig,
    gpu,
    resource_slice,
)
from tests.helpers.scrape import collected
from tests.helpers.waiting import wait_for
from tests.kubeletplugin.gpus.lifecycle.test_managers import label, with_options
from tests.kubeletplugin.helpers.reported import events, reasons, verdict
from tests.kubeletplugin.helpers.rig import DRIVER, Rig

SLICE, OTHER, WAITING = "gpu-0-mig-1g5gb-19-4", "gpu-1-mig-1g5gb-19-0", "gpu-0-mig-1g5gb-19-0"
ACTIVE = "NvidiaDraDriverActive"


@pytest.fixture
def publish(make_rig: Callable[..., Rig]) -> Iterator[Callable[..., None]]:
    """NVIDIA's driver publishes devices of a rig's node; without devices it withdraws them."""
    made: list[tuple[Rig, Obj]] = []

    def withdraw() -> None:
        while made:
            rig, each = made.pop()
            rig.api.delete(RESOURCE_SLICES, each["metadata"]["name"])

    def change(rig: Rig, *devices: Obj) -> None:
        withdraw()
        if devices:
            given = counter_slice(rig.node), resource_slice(rig.node, *devices, count=2)
            made.extend((rig, rig.api.create(RESOURCE_SLICES, each)) for each in given)

    yield change
    withdraw()


def dynamic() -> list[Obj]:
    return [gpu(0, partitionable=True), *(future_mig(n) for n in range(7))]


def tend(rig: Rig) -> None:
    assert rig.daemon is not None
    rig.daemon.janitor.tend(everything=True)


def test_beside_dynamic_mig_nothing_is_made_or_destroyed(
    rig: Rig, publish: Callable[..., None]
) -> None:
    kept, leaving = rig.claim(SLICE), rig.claim(OTHER)
    rig.prepared(kept)
    rig.prepared(leaving)
    publish(rig, *dynamic())
    wait_for("MigNode", lambda: reasons(rig) == [ACTIVE] * 2)
    wait_for("the event", lambda: ACTIVE in dict(events(rig, rig.node)))
    text = dict(events(rig, rig.node))[ACTIVE]
    for part in ("7 MIG devices to be made on demand", "destroys", f"{DEPLOY_LABEL}=false"):
        assert part in text
    metric = collected(rig.telemetry.registry).labels("mig_dra_gpu_unavailable")
    assert [each["reason"] for each in metric] == [ACTIVE] * 2

    before, waiting = rig.mutations(), rig.claim(WAITING)
    assert "NVIDIA's DRA driver" in rig.refused(waiting)
    assert "NVIDIA's DRA driver" in verdict(rig, waiting), "it lasts until somebody takes it away"
    rig.prepared(kept)
    assert rig.unprepare(leaving) == "", "its pod can go"
    tend(rig)
    assert [e.state for e in rig.journal() if e.claim == leaving] == [State.LEFTOVER]
    assert rig.mutations() == before

    publish(rig)
    wait_for("MigNode", lambda: reasons(rig) == ["", ""])
    tend(rig)
    wait_for("the janitor", lambda: rig.slices() == [(0, "1g.5gb", 4, True)])
    rig.prepared(waiting)


def test_at_its_start_the_plugin_looks_before_it_removes_anything(
    make_rig: Callable[..., Rig], publish: Callable[..., None]
) -> None:
    rig = make_rig()
    rig.start()
    ref = rig.claim(SLICE)
    rig.prepared(ref)
    rig.stop()
    rig.delete_claim(ref)
    publish(rig, *dynamic())
    before = rig.mutations()
    rig.start()
    tend(rig)
    assert reasons(rig) == [ACTIVE] * 2
    assert rig.mutations() == before
    publish(rig)
    wait_for("MigNode", lambda: reasons(rig) == ["", ""])
    tend(rig)
    wait_for("the janitor", rig.clean)


@pytest.mark.parametrize(
    ("value", "reason"),
    # A pause of one of NVIDIA's programs is one of all: the GPUs are released.
    [("true", ACTIVE), ("paused-for-driver-upgrade", GpuReason.RELEASED)],
)
def test_its_label_is_enough_and_false_ends_it(rig: Rig, value: str, reason: str) -> None:
    label(rig, {DEPLOY_LABEL: value})
    wait_for("MigNode", lambda: reasons(rig) == [reason] * 2)
    assert f"{DEPLOY_LABEL}={value}" in rig.refused(rig.claim(SLICE))
    label(rig, {DEPLOY_LABEL: "false"})
    wait_for("MigNode", lambda: reasons(rig) == ["", ""])
    rig.prepared(rig.claim(SLICE))


def test_an_administrator_may_ignore_it(
    make_rig: Callable[..., Rig],
    publish: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with_options(monkeypatch, ignore_other_managers=True)
    rig = make_rig()
    publish(rig, *dynamic())
    label(rig, {DEPLOY_LABEL: "true"})
    rig.start()
    rig.prepared(rig.claim(SLICE))
    assert reasons(rig) == ["", ""]


class Seen:
    """What a watch tells, in order."""

    def __init__(self, rig: Rig, driver: str = DRIVER, *, ignore: bool = False) -> None:
        self.conflicts: list[Conflict | None] = []
        self.namesakes = threading.Event()
        assert rig.daemon is not None
        common = rig.daemon.common
        options = replace(common.options, driver_name=driver, ignore_other_managers=ignore)
        self.watch = NodeWatch(
            replace(common, options=options, reports=Reports(_Silent(), rig.node)),
            on_conflict=self.conflicts.append,
            on_pause=lambda _: None,
            on_labels=lambda: None,
            on_namesake=self.namesakes.set,
        )


class _Silent:
    def emit(self, *_: Any, **__: Any) -> None:
        pass


@pytest.mark.parametrize("ignore", [False, True])
def test_under_its_own_name_nvidias_driver_ends_the_plugin(
    rig: Rig, publish: Callable[..., None], *, ignore: bool
) -> None:
    seen = Seen(rig, NVIDIA_DRIVER, ignore=ignore)
    publish(rig, *dynamic())
    seen.watch.look()
    assert seen.namesakes.is_set()
    assert bool(seen.conflicts) is not ignore
    other = Seen(rig)
    other.watch.look()
    assert not other.namesakes.is_set(), "under another name both can be there"


def named_as_nvidias(rig: Rig) -> Options:
    return Options(
        node_name=rig.node,
        driver_name=NVIDIA_DRIVER,
        allocator=AllocatorKind.SCHEDULER,
        roots=rig.roots,
        instance="mine",
    )


@pytest.mark.parametrize("name", ["gpu.nvidia.com-reg.sock", "gpu.nvidia.com-theirs-reg.sock"])
def test_a_socket_of_nvidias_on_which_somebody_listens_is_refused(
    rig: Rig, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(daemon, "Daemon")
    rig.roots.registry.mkdir(parents=True, exist_ok=True)
    path = rig.roots.registry / name
    options = named_as_nvidias(rig)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as theirs:
        theirs.bind(str(path))
        theirs.listen()
        with pytest.raises(HostError) as refused:
            daemon.serve(options, rig.api, Telemetry(), threading.Event())
        for part in (str(path), f"{DEPLOY_LABEL}=false", "--driver-name=mig.dra.dev"):
            assert part in str(refused.value)
        refuse_namesake(replace(options, driver_name=DRIVER), rig.api)
    refuse_namesake(options, rig.api)  # nobody listens any more


def test_slices_of_nvidias_are_refused_and_of_our_own_are_not(
    rig: Rig, publish: Callable[..., None]
) -> None:
    options = named_as_nvidias(rig)
    publish(rig, *dynamic())
    with pytest.raises(HostError, match=r"7 MIG devices to be made on demand.* half a minute"):
        refuse_namesake(options, rig.api)
    publish(rig)
    refuse_namesake(options, rig.api)
    rig.http.down = True
    refuse_namesake(options, KubeApi(rig.http))


def test_slices_that_others_publish_under_the_name_are_not_touched(
    rig: Rig, publish: Callable[..., None]
) -> None:
    publish(rig, *dynamic())
    common: Any = SimpleNamespace(
        api=rig.api,
        options=SimpleNamespace(driver_name=NVIDIA_DRIVER, node_name=rig.node, field_manager="t"),
    )
    assert SliceWriter(common, owner=dict, known=Mock()).withdraw() == 0
    selector = f"spec.nodeName={rig.node},spec.driver={NVIDIA_DRIVER}"
    assert len(rig.api.list(RESOURCE_SLICES, field_selector=selector).items) == 2
