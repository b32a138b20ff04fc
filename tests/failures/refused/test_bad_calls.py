"""Calls that no kubelet would make: every one gets an answer, and the plugin goes on serving."""

from __future__ import annotations

import os
import random
import socket
from contextlib import closing
from typing import Any

import grpc
import pytest

from api.kubelet.dra.v1 import api_pb2 as v1
from api.kubelet.pluginregistration.v1 import api_pb2 as registration_pb2
from api.kubelet.pluginregistration.v1 import api_pb2_grpc as registration_v1
from dra.gpu.inventory import ClaimRef
from dra.kube.errors import KubeError, ObjectNotFoundError
from tests.helpers.waiting import PATIENCE
from tests.kubeletplugin.helpers.rig import DRIVER, Rig, wire

MANY = 10_000 if os.environ.get("MIG_SOAK") else 1_000
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
PREPARE = "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources"
WATCH = "/v1.DRAResourceHealth/NodeWatchResources"
WATCHERS = 40
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


def undecodable(error: Any) -> bool:
    """Whether it was refused for its bytes, not for its method."""
    return bool(error.code() is not grpc.StatusCode.UNIMPLEMENTED)


def test_bytes_that_are_no_calls_harm_nobody(rig: Rig, served: ClaimRef) -> None:
    chance = random.Random(7)
    for number in range(60):
        start = PREFACE if number % 2 else b""
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(0.05)  # some of it the server reads on, without an answer
            client.connect(str(rig.service_socket))
            try:
                client.sendall(start + chance.randbytes(chance.randrange(1, 4000)))
                client.recv(4096)
            except (TimeoutError, ConnectionError):
                continue
    check_serves(rig, served)
    with closing(rig.channel(rig.registration_socket)) as channel:
        stub = registration_v1.RegistrationStub(channel)
        assert stub.GetInfo(registration_pb2.InfoRequest(), timeout=PATIENCE).name == DRIVER


def test_messages_that_cannot_be_decoded_are_refused(rig: Rig, served: ClaimRef) -> None:
    chance = random.Random(11)
    good = v1.NodePrepareResourcesRequest(claims=[wire(served)]).SerializeToString()
    refused = 0
    with closing(rig.channel()) as channel:
        call: Any = channel.unary_unary(PREPARE)
        for _ in range(60):
            data = bytearray(good)
            for _ in range(chance.randrange(1, 4)):
                data[chance.randrange(4)] = chance.randrange(256)
            data = data[: chance.randrange(1, len(data))]
            try:
                call(bytes(data), timeout=PATIENCE)
            except grpc.RpcError as error:
                refused += undecodable(error)
    assert refused > 10
    check_serves(rig, served)


def test_health_survives_messages_at_random_and_more_watchers_than_there_are_slices(
    rig: Rig, served: ClaimRef
) -> None:
    chance = random.Random(17)
    refused = 0
    with closing(rig.channel()) as channel:
        watch: Any = channel.unary_stream(WATCH)
        for _ in range(60):
            try:
                # Unknown fields are fine, and then the watch goes on until it is cancelled.
                next(watch(chance.randbytes(chance.randrange(1, 200)), timeout=PATIENCE))
            except grpc.RpcError as error:
                refused += undecodable(error)
        assert refused > 10
        watching: list[Any] = []
        for _ in range(WATCHERS):
            watching.append(watch(b""))  # which ends the oldest but eight
            next(watching[-1])
        check_serves(rig, served)
        for each in watching:
            each.cancel()


def test_a_claim_in_another_namespace_than_its_own_is_refused(rig: Rig, served: ClaimRef) -> None:
    other = rig.claim("gpu-1-mig-1g5gb-19-4")
    assert "does not exist" in rig.refused(ClaimRef("elsewhere", other.name, other.uid))
    assert "namespace ''" in rig.refused(ClaimRef("", other.name, other.uid))
    assert "does not exist" in rig.refused(ClaimRef("elsewhere", served.name, served.uid))
    assert "replaced" in rig.refused(ClaimRef("default", other.name, served.uid))
    check_serves(rig, served)


@pytest.mark.parametrize("part", ["namespace", "name", "uid"])
def test_names_of_5000_characters_are_answered(rig: Rig, served: ClaimRef, part: str) -> None:
    fields = {"namespace": "default", "name": "claim", "uid": "unknown"} | {part: "x" * 5000}
    ref = ClaimRef(**fields)
    assert rig.refused(ref)
    rig.unprepare(ref)
    check_serves(rig, served)


@pytest.mark.parametrize("part", ["namespace", "name"])
def test_names_that_nothing_can_have_are_refused(rig: Rig, served: ClaimRef, part: str) -> None:
    for text in ("", ".", "..", "../..", "a/b", "a?b=c", "%2e%2e", "a\nb", "ä"):
        ref = ClaimRef(**{"namespace": "default", "name": "claim", "uid": "unknown"} | {part: text})
        assert f"no claim can have the {part} {text!r}" in rig.refused(ref)
        assert rig.unprepare(ref) == "", text
        check_serves(rig, served)


def test_very_many_unknown_claims_in_one_call_are_each_answered(
    rig: Rig, served: ClaimRef, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kubeletplugin.claims.node.RPC_SECONDS", 2 * PATIENCE)
    claims = [v1.Claim(namespace="default", name=f"c{i}", uid=f"uid-{i}") for i in range(MANY)]

    def refuse(method: str, path: str) -> KubeError | None:
        if "resourceclaims/c" not in path or path.endswith(f"/{served.name}"):
            return None
        return ObjectNotFoundError(path, status=404, details={"name": path.rsplit("/", 1)[-1]})

    rig.http.refuse = refuse
    with closing(rig.channel()) as channel:
        stub = rig.stub(channel)
        prepared = stub.NodePrepareResources(
            v1.NodePrepareResourcesRequest(claims=claims), timeout=3 * PATIENCE
        )
        assert len(prepared.claims) == MANY
        assert all(answer.error for answer in prepared.claims.values())
        unprepared = stub.NodeUnprepareResources(
            v1.NodeUnprepareResourcesRequest(claims=claims), timeout=3 * PATIENCE
        )
        assert len(unprepared.claims) == MANY
        assert not [a.error for a in unprepared.claims.values() if a.error]
    rig.http.refuse = lambda method, path: None
    check_serves(rig, served)
