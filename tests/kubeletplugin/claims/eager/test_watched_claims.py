"""Claims that the watch has told a moment ago: what is made of them without reading them again."""

from __future__ import annotations

from typing import cast

import pytest

from dra.claims.claims import Claim, read_claim
from dra.common.resources import Obj
from dra.gpu.inventory import ClaimRef
from dra.kube.client.transport import KubeApi
from kubeletplugin.claims.eager.watched_claims import FRESH_SECONDS, WatchedClaims
from kubeletplugin.claims.prepare import lookup
from kubeletplugin.claims.prepare.lookup import read_expected_devices
from kubeletplugin.errors import ClaimError
from tests.dra.kube.clocks import FakeClock
from tests.kubeletplugin.helpers.aheadofkubelet import DEVICE, ahead
from tests.kubeletplugin.helpers.rig import Rig

REF = ClaimRef("default", "c", "uid-1")
NO_API = cast("KubeApi", None)


def claim(*, uid: str = "uid-1", version: str = "1", reserved: bool = True) -> Claim:
    result = {"request": "r", "driver": "mig.dra.dev", "pool": "node", "device": "gpu-0"}
    status: Obj = {"allocation": {"devices": {"results": [result]}}}
    if reserved:
        status["reservedFor"] = [{"resource": "pods", "name": "p", "uid": "p"}]
    metadata = {"namespace": "default", "name": "c", "uid": uid, "resourceVersion": version}
    return read_claim({"metadata": metadata, "status": status})


def test_a_claim_is_given_once_in_its_last_state_and_only_for_a_moment() -> None:
    clock = FakeClock()
    watched = WatchedClaims(clock)
    assert watched.take(REF) is None
    watched.note(claim(version="1"))
    watched.note(claim(version="2"))
    clock.at += FRESH_SECONDS
    taken = watched.take(REF)
    assert taken is not None
    assert taken.resource_version == "2"
    assert watched.take(REF) is None, "who tries again reads it"
    watched.note(claim())
    clock.at += FRESH_SECONDS * 1.01
    assert watched.take(REF) is None


def test_what_was_told_long_ago_is_not_kept() -> None:
    clock = FakeClock()
    watched = WatchedClaims(clock)
    watched.note(claim(uid="old"))
    clock.at += FRESH_SECONDS * 2
    watched.note(claim(uid="new"))
    assert watched._told.keys() == {"new"}


def test_a_claim_that_was_told_is_checked_as_one_that_is_read() -> None:
    def read(found: Claim) -> list[str]:
        devices = read_expected_devices(
            NO_API, REF, driver="mig.dra.dev", pool="node", watched=lambda _: found
        )
        return [d.device for d in devices]

    assert read(claim()) == ["gpu-0"]
    with pytest.raises(ClaimError, match="no pod has reserved"):
        read(claim(reserved=False))
    with pytest.raises(ClaimError, match="replaced by another"):
        read(claim(uid="uid-2"))


def test_a_slice_is_made_ahead_of_a_claim_that_nobody_reads(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_api: KubeApi, ref: ClaimRef) -> Obj:
        raise AssertionError(f"claim {ref} is read")

    monkeypatch.setattr(lookup, "_get", refuse)
    ahead(rig, DEVICE)
