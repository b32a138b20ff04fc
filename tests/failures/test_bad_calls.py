"""Calls that no kubelet would make: every one gets an answer, and the plugin goes on serving."""

from __future__ import annotations

import random
import socket
import time
from contextlib import closing
from typing import Any

import grpc
import pytest

from api.kubelet.dra.v1 import api_pb2 as v1
from dra.inventory import ClaimRef
from dra.kube.errors import KubeError, NotFoundError
from tests.kubeletplugin.rig import Rig, wire

MANY = 10_000
RPC_SECONDS = 45.0
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
METHODS = [
    f"/k8s.io.kubelet.pkg.apis.dra.{version}.DRAPlugin/{method}"
    for version in ("v1", "v1beta1")
    for method in ("NodePrepareResources", "NodeUnprepareResources")
]
GOOD = "gpu-0-mig-1g5gb-19-4"


@pytest.fixture
def served(rig: Rig) -> ClaimRef:
    """A claim that is prepared, and must stay so."""
    ref = rig.claim(GOOD)
    rig.prepared(ref)
    return ref


def check_serves(rig: Rig, served: ClaimRef) -> None:
    """What was prepared is there, and a claim can come and go."""
    other = rig.claim("gpu-1-mig-1g5gb-19-0")
    assert rig.prepared(other)
    assert rig.unprepare(other) == ""
    assert rig.slices() == [(0, "1g.5gb", 4, True)]
    assert [e.claim for e in rig.journal()] == [served]


@pytest.mark.parametrize("start", [b"", PREFACE], ids=["anything", "after HTTP/2's preface"])
def test_bytes_that_are_no_calls_harm_nobody(rig: Rig, served: ClaimRef, start: bytes) -> None:
    chance = random.Random(7)
    for _ in range(60):
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(2)
            client.connect(str(rig.service_socket))
            try:
                client.sendall(start + chance.randbytes(chance.randrange(1, 4000)))
                client.recv(4096)
            except (TimeoutError, ConnectionError):
                continue
    check_serves(rig, served)


@pytest.mark.parametrize("method", METHODS)
def test_messages_that_cannot_be_decoded_are_refused(
    rig: Rig, served: ClaimRef, method: str
) -> None:
    chance = random.Random(11)
    good = v1.NodePrepareResourcesRequest(claims=[wire(served)]).SerializeToString()
    refused = 0
    with closing(rig.channel()) as channel:
        call: Any = channel.unary_unary(method)
        for _ in range(60):
            data = bytearray(good)
            for _ in range(chance.randrange(1, 4)):
                data[chance.randrange(4)] = chance.randrange(256)
            data = data[: chance.randrange(1, len(data))]
            try:
                call(bytes(data), timeout=10)
            except grpc.RpcError:
                refused += 1
    assert refused > 10
    check_serves(rig, served)


def test_a_claim_in_another_namespace_than_its_own_is_refused(rig: Rig, served: ClaimRef) -> None:
    other = rig.claim("gpu-1-mig-1g5gb-19-4")
    assert "does not exist" in rig.refused(ClaimRef("elsewhere", other.name, other.uid))
    assert "does not exist" in rig.refused(ClaimRef("", other.name, other.uid))
    check_serves(rig, served)


@pytest.mark.parametrize("part", ["namespace", "name", "uid"])
def test_names_of_5000_characters_are_answered(rig: Rig, served: ClaimRef, part: str) -> None:
    fields = {"namespace": "default", "name": "claim", "uid": "unknown"} | {part: "x" * 5000}
    ref = ClaimRef(**fields)
    assert rig.refused(ref)
    rig.unprepare(ref)
    check_serves(rig, served)


@pytest.mark.timeout(180)
def test_ten_thousand_unknown_claims_in_one_call_are_each_answered_in_time(
    rig: Rig, served: ClaimRef
) -> None:
    claims = [v1.Claim(namespace="default", name=f"c{i}", uid=f"uid-{i}") for i in range(MANY)]

    def refuse(method: str, path: str) -> KubeError | None:
        if "resourceclaims/c" not in path or path.endswith(f"/{served.name}"):
            return None
        return NotFoundError(path, status=404, details={"name": path.rsplit("/", 1)[-1]})

    rig.http.refuse = refuse
    with closing(rig.channel()) as channel:
        stub = rig.stub(channel)
        began = time.monotonic()
        prepared = stub.NodePrepareResources(
            v1.NodePrepareResourcesRequest(claims=claims), timeout=RPC_SECONDS
        )
        assert time.monotonic() - began < RPC_SECONDS
        assert len(prepared.claims) == MANY
        assert all(answer.error for answer in prepared.claims.values())
        unprepared = stub.NodeUnprepareResources(
            v1.NodeUnprepareResourcesRequest(claims=claims), timeout=RPC_SECONDS
        )
        assert len(unprepared.claims) == MANY
        assert not [a.error for a in unprepared.claims.values() if a.error]
    rig.http.refuse = lambda method, path: None
    check_serves(rig, served)
