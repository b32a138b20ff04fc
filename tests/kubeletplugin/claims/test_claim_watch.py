"""Claims that the watch has told a moment ago: what is made of them without reading them again."""

from __future__ import annotations

from typing import cast

import msgspec
import pytest

from dra.claims.claims import read_claim
from dra.common.cache import decoded_weight
from dra.common.resources import Obj
from dra.gpu.inventory import ClaimRef
from dra.kube.client import KubeApi
from kubeletplugin.claims.claim_watch import ClaimWatch
from kubeletplugin.claims.early import EarlySlices
from kubeletplugin.claims.lookup import ClaimReader
from kubeletplugin.claims.outcomes import Outcomes
from kubeletplugin.errors import ClaimError
from tests.dra.kube.clocks import FakeClock
from tests.kubeletplugin.helpers.aheadofkubelet import DEVICE, ahead
from tests.kubeletplugin.helpers.rig import Rig

REF = ClaimRef("default", "c", "uid-1")
NO_API = cast("KubeApi", None)


def claim(*, uid: str = "uid-1", version: str = "1", reserved: bool = True) -> Obj:
    result = {"request": "r", "driver": "mig.dra.dev", "pool": "node", "device": "gpu-0"}
    status: Obj = {"allocation": {"devices": {"results": [result]}}}
    if reserved:
        status["reservedFor"] = [{"resource": "pods", "name": "p", "uid": "p"}]
    metadata = {"namespace": "default", "name": "c", "uid": uid, "resourceVersion": version}
    return {"metadata": metadata, "status": status}


class Watch(ClaimWatch):
    """A watch that is told of claims by hand; ``expected`` are the devices that it tells of."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.expected: list[tuple[str, ...]] = []
        super().__init__(
            ClaimReader(NO_API, driver="mig.dra.dev", pool="node"),
            cast("Outcomes", _Nobody()),
            cast("EarlySlices", self),
            clock=self.clock,
        )

    def expect(self, ref: ClaimRef, names: tuple[str, ...], *, again: bool) -> None:
        self.expected.append(names)


def test_a_claim_that_was_told_is_checked_as_one_that_is_read() -> None:
    def read(found: Obj) -> list[str]:
        reader = ClaimReader(NO_API, driver="mig.dra.dev", pool="node")
        return [d.device for d in reader.read_expected(REF, read_claim(found))[1]]

    assert read(claim()) == ["gpu-0"]
    with pytest.raises(ClaimError, match="no pod has reserved"):
        read(claim(reserved=False))
    with pytest.raises(ClaimError, match="replaced by another"):
        read(claim(uid="uid-2"))


def test_a_slice_is_made_ahead_of_a_claim_that_nobody_reads(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_reader: ClaimReader, ref: ClaimRef) -> Obj:
        raise AssertionError(f"claim {ref} is read")

    monkeypatch.setattr(ClaimReader, "_get", refuse)
    ahead(rig, DEVICE)


class _Nobody:
    """Waits for no device."""

    def expect(self, ref: ClaimRef, pods: frozenset[str], *, says_made: bool) -> bool:
        return False


CONFIG = {"opaque": {"driver": "mig.dra.dev", "parameters": {"x": "y" * 9000}}}
OTHERS = {"opaque": {"driver": "net.example.com", "parameters": {"x": ["y"] * 2000}}}
RESULT = {"request": "r", "driver": "mig.dra.dev", "pool": "node", "device": "gpu-0"}


def allocated(*results: Obj, config: list[Obj], devices: tuple[Obj, ...] = ()) -> Obj:
    """A claim with the label of the node, which any user may set."""
    return {
        "metadata": {
            "namespace": "default",
            "name": "c",
            "uid": "uid-1",
            "resourceVersion": "1",
            "annotations": {"large": "x" * 10_000},
        },
        "spec": {"devices": {"config": config}},
        "status": {
            "allocation": {"devices": {"results": [*results], "config": config}},
            "reservedFor": [
                {"resource": "pods", "name": f"p{n}", "uid": f"{n}"} for n in range(50)
            ],
            "devices": [*devices],
        },
    }


@pytest.mark.parametrize(
    ("body", "read", "told"),
    [
        (allocated(config=[OTHERS] * 32), 0, True),
        (allocated(RESULT | {"driver": "net.example.com"}, config=[OTHERS] * 32), 0, True),
        (allocated(RESULT | {"pool": "other"}, config=[CONFIG] * 32), 0, True),
        (allocated(RESULT, config=[OTHERS] * 32), 1, True),
        (allocated(RESULT, config=[CONFIG] * 32), 1, False),
        (
            allocated(RESULT, config=[], devices=(RESULT | {"pool": "o", "data": "x" * 9000},)),
            1,
            True,
        ),
        (allocated(*[RESULT | {"pool": f"{n}"} for n in range(32)], RESULT, config=[]), 1, True),
    ],
)
def test_little_is_kept_of_claims_that_say_they_are_for_the_node(
    body: Obj, read: int, *, told: bool
) -> None:
    """A claim of 320 KiB is megabytes in memory, and each node has 256 MiB."""
    watch = Watch()
    reflector = watch._reflector
    slim = reflector._keep(msgspec.Raw(msgspec.json.encode(body)))
    assert slim is not None
    assert decoded_weight(msgspec.json.encode(slim)) < 24 * 2**10
    for change in reflector.store.put(slim):
        watch._changed(change)
    assert watch.expected == [("gpu-0",) * read]
    assert (watch.take(REF) is not None) is told
    held = reflector.store.list()
    assert decoded_weight(msgspec.json.encode(held)) < 2**10
    reflector.store.begin_list()
    for change in reflector.store.end_list():
        watch._changed(change)
    assert watch.expected[1:] == [()]
