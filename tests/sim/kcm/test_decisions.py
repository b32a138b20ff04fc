"""What a claim's consumers call for, without an API server."""

from __future__ import annotations

import pytest

from dra.claims.claims import SCHEDULER_FINALIZER
from dra.common.resources import Obj
from sim.kcm import ClaimChange, claim_change

_POD: Obj = {"metadata": {"name": "a", "uid": "1"}, "spec": {"nodeName": "n"}, "status": {}}
_DONE: Obj = _POD | {"status": {"phase": "Succeeded"}}
_ALLOCATED: Obj = {
    "allocation": {"devices": {"results": []}},
    "devices": [{"device": "d"}],
    "reservedFor": [{"resource": "pods", "name": "a", "uid": "1"}],
}


def _claim(*, deleting: bool = False, protected: bool = True) -> Obj:
    metadata: Obj = {"name": "c", "finalizers": [SCHEDULER_FINALIZER] if protected else []}
    return {
        "metadata": metadata | ({"deletionTimestamp": "t"} if deleting else {}),
        "status": _ALLOCATED,
    }


@pytest.mark.parametrize("deleting", [False, True])
@pytest.mark.parametrize("protected", [False, True])
def test_a_claim_in_use_is_left_alone(deleting: bool, protected: bool) -> None:  # noqa: FBT001
    claim = _claim(deleting=deleting, protected=protected)
    assert claim_change(claim, lambda name: _POD) == ClaimChange()


def test_with_its_last_pod_a_protected_claim_loses_allocation_and_finalizer() -> None:
    assert claim_change(_claim(), lambda name: _DONE) == ClaimChange(status={}, release=True)


def test_with_its_last_pod_an_unprotected_claim_loses_only_the_reservation() -> None:
    kept = {k: v for k, v in _ALLOCATED.items() if k != "reservedFor"}
    assert claim_change(_claim(protected=False), lambda name: None) == ClaimChange(status=kept)
