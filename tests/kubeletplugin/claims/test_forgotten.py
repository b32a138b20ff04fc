"""Claims that kubelet has forgotten: being deleted, reserved by nobody, and never unprepared."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from dra.common.resources import RESOURCE_CLAIMS
from dra.gpu.inventory import ClaimRef
from kubeletplugin.options import Options
from tests.helpers.waiting import PATIENCE, wait_for
from tests.kubeletplugin.helpers import rig as rig_module
from tests.kubeletplugin.helpers.rig import Rig

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
        rig.api.patch(
            RESOURCE_CLAIMS,
            ref.name,
            {"status": {"reservedFor": [consumer]}},
            namespace=ref.namespace,
            subresource="status",
        )
    rig.delete_claim(ref)
    return ref


def looked_at(rig: Rig) -> None:
    assert rig.daemon is not None
    rig.daemon.claims.janitor.tend(everything=True)
    assert rig.daemon.claims.node.tasks.wait_idle(PATIENCE)


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


def test_a_pod_that_has_reserved_a_claim_keeps_its_slice(forgets_after: Wait) -> None:
    rig = forgets_after(0.0)
    being_deleted(rig, reserved=True)
    looked_at(rig)
    assert len(rig.slices()) == 1
