"""GPU instances kept for the next claim of a namespace, and claims that kubelet has forgotten."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from dra.common.resources import MIG_NODES, NAMESPACES, RESOURCE_CLAIMS
from dra.gpu.inventory import ClaimRef
from kubeletplugin.journal.entries import State
from kubeletplugin.options import Options
from tests.helpers.waiting import PATIENCE, wait_for
from tests.kubeletplugin.helpers import rig as rig_module
from tests.kubeletplugin.helpers.rig import Rig

DEVICE = "gpu-0-mig-2g10gb-14-4"


@pytest.fixture
def warm(make_rig: Callable[..., Rig], short_patience: None) -> Rig:
    """A node that keeps what is released."""
    rig = make_rig()
    rig.idle_seconds = 3600.0
    rig.start()
    return rig


def released(rig: Rig, device: str = DEVICE) -> None:
    """A slice that a claim had, and has no more."""
    ref = rig.claim(device)
    rig.prepared(ref)
    assert not rig.unprepare(ref)


def gpu_instances(rig: Rig) -> list[str]:
    """Calls that made or destroyed one, in order."""
    short = {"Create": "create", "Destroy": "destroy"}
    return [
        short["Create" if "Create" in name else "Destroy"]
        for name in rig.mutations()
        if "CreateGpuInstance" in name or "GpuInstanceDestroy" in name
    ]


def test_the_next_claim_of_the_namespace_gets_it_with_a_new_compute_instance(warm: Rig) -> None:
    first = warm.claim(DEVICE)
    warm.prepared(first)
    [before] = warm.journal()
    warm.unprepare(first)
    assert warm.slices() == [(0, "2g.10gb", 4, False)]
    assert warm.specs() == []
    second = warm.claim(DEVICE)
    warm.prepared(second)
    assert gpu_instances(warm) == ["create"]
    [after] = warm.journal()
    assert (after.claim, after.state, after.idle) == (second, State.PREPARED, False)
    assert after.mig_uuid != before.mig_uuid
    assert warm.slices() == [(0, "2g.10gb", 4, True)]


def test_another_namespace_gets_one_of_its_own(warm: Rig) -> None:
    warm.api.create(NAMESPACES, {"metadata": {"name": "stranger"}})
    released(warm)
    warm.prepared(warm.claim(DEVICE, namespace="stranger"))
    assert gpu_instances(warm) == ["create", "destroy", "create"]


def test_it_is_kept_for_a_time(warm: Rig) -> None:
    assert warm.daemon is not None
    released(warm)
    warm.daemon.janitor.tend(everything=True)
    assert gpu_instances(warm) == ["create"]
    warm.daemon.node.removal.idle._seconds = 0.001
    wait_for("its end", warm.clean)


def test_none_keeps_a_gpu_from_being_released(warm: Rig) -> None:
    released(warm)
    drain(warm)
    wait_for("its end", warm.clean)


def drain(rig: Rig) -> None:
    body = {"spec": {"drain": {"since": "2026-01-01T00:00:00Z"}}}
    rig.api.patch(MIG_NODES, rig.node, body)


SLICE = "gpu-0-mig-1g5gb-19-4"
Wait = Callable[[float], Rig]


@pytest.fixture
def forgets_after(make_rig: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch) -> Wait:
    """Starts a plugin that waits so long, in seconds, for kubelet."""

    def start(seconds: float) -> Rig:
        options = lambda *a, **more: replace(Options(*a, **more), forgotten_after=seconds)  # noqa: E731
        monkeypatch.setattr(rig_module, "Options", options)
        rig = make_rig()
        rig.start()
        return rig

    return start


def being_deleted(rig: Rig, *, reserved: bool) -> ClaimRef:
    """A prepared claim that the controller's finalizer keeps from going."""
    ref = rig.claim(SLICE)
    rig.prepared(ref)
    finalizers = {"metadata": {"finalizers": ["mig.dra.dev/allocation"]}}
    rig.api.patch(RESOURCE_CLAIMS, ref.name, finalizers, namespace=ref.namespace)
    if reserved:
        consumer = {"resource": "pods", "name": "p", "uid": "uid-of-p"}
        rig.set_status(ref, reservedFor=[consumer])
    rig.delete_claim(ref)
    return ref


def looked_at(rig: Rig) -> None:
    assert rig.daemon is not None
    rig.daemon.janitor.tend(everything=True)
    assert rig.daemon.node.tasks.wait_idle(PATIENCE)


def test_kubelet_has_time_to_unprepare_a_claim_that_ended(forgets_after: Wait) -> None:
    rig = forgets_after(3600.0)
    ref = being_deleted(rig, reserved=False)
    looked_at(rig)
    assert len(rig.slices()) == 1
    assert rig.unprepare(ref) == ""
    assert rig.clean()


def test_a_claim_that_ended_long_ago_loses_its_slice_without_kubelet(forgets_after: Wait) -> None:
    rig = forgets_after(0.0)
    being_deleted(rig, reserved=False)
    looked_at(rig)
    wait_for("the slice to go", rig.clean)
