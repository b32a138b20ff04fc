"""Devices of a claim on this node as they are read, and every reason to refuse the claim."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from dra.claims.allocation import AllocatedDevice
from dra.claims.claims import Claim
from dra.common.resources import RESOURCE_CLAIMS, Obj
from dra.gpu.inventory import ClaimRef
from dra.kube.client import KubeApi
from dra.kube.errors import ForbiddenError, KubeError, UnavailableError
from kubeletplugin.claims.lookup import ClaimReader, ClaimUnreadableError
from kubeletplugin.errors import ClaimError, PluginError
from tests.failures.helpers.folderapi import FolderHttp

DRIVER, POOL = "mig.dra.dev", "node-1"
GOOD = "gpu-0-mig-1g5gb-19-4"
RESULT = {"request": "r0", "driver": DRIVER, "pool": POOL, "device": GOOD}
MIG_CONFIG = {"apiVersion": "mig.dra.dev/v1alpha1", "kind": "MigDeviceConfig"}


class Server:
    """An API server with one claim; ``refuse`` is the error that it answers with instead."""

    def __init__(self, folder: Path) -> None:
        self.refuse: KubeError | None = None
        self.seen: list[Claim] = []
        self._api = KubeApi(FolderHttp(folder, reach=self._reach))

    def _reach(self, method: str, path: str) -> None:
        if self.refuse is not None and method == "GET":
            raise self.refuse

    def claim(
        self, *results: Obj, config: tuple[Obj, ...] = (), name: str = "claim", **status: Any
    ) -> ClaimRef:
        allocation = {"devices": {"results": list(results), "config": list(config)}}
        status = {"allocation": allocation} | status
        body = {"metadata": {"name": name, "namespace": "default"}, "spec": {}, "status": status}
        made = self._api.create(RESOURCE_CLAIMS, body)
        return ClaimRef("default", name, made["metadata"]["uid"])

    def read(self, ref: ClaimRef) -> tuple[AllocatedDevice, ...]:
        reader = ClaimReader(self._api, driver=DRIVER, pool=POOL, seen=self.seen.append)
        return reader.read(ref)[1]

    def refused(self, ref: ClaimRef) -> PluginError:
        with pytest.raises(PluginError) as error:
            self.read(ref)
        return error.value


@pytest.fixture
def server(tmp_path: Path) -> Server:
    return Server(tmp_path)


def test_the_devices_of_this_driver_in_this_pool_are_read(server: Server) -> None:
    ref = server.claim(
        RESULT | {"request": "r0/large"},
        RESULT | {"driver": "net.example.com", "device": "nic-1"},
        RESULT | {"pool": "node-2"},
        RESULT | {"request": "r1", "device": "gpu-1"},
    )
    large, whole = server.read(ref)
    assert (large.device, large.base_request, large.pool) == (GOOD, "r0", POOL)
    assert (whole.device, whole.base_request) == ("gpu-1", "r1")
    assert [c.ref for c in server.seen] == [ref]


REFUSED: dict[str, tuple[list[Obj], list[str]]] = {
    "another driver's": (
        [RESULT | {"driver": "gpu.example.com"}],
        ["no device of driver mig.dra.dev", f"was given: gpu.example.com/node-1/{GOOD}"],
    ),
    "another node's": (
        [RESULT | {"pool": "node-2"}],
        ["pool node-1", f"mig.dra.dev/node-2/{GOOD}"],
    ),
    "nothing": ([], ["it was given: nothing"]),
    "the same twice": ([RESULT, RESULT | {"request": "r1"}], [f"{GOOD} twice"]),
    "a look into a slice": (
        [RESULT | {"adminAccess": True}],
        ["request r0 asks for adminAccess", "look at the whole GPU"],
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_it_was_given_is_refused_in_words(server: Server, case: str) -> None:
    results, parts = REFUSED[case]
    error = server.refused(server.claim(*results))
    assert isinstance(error, ClaimError)
    for part in parts:
        assert part in str(error)


def test_a_claim_that_is_not_allocated_is_refused(server: Server) -> None:
    error = server.refused(server.claim(allocation=None))
    assert isinstance(error, ClaimError)
    assert "not allocated" in str(error)


def test_a_claim_that_was_replaced_under_its_name_is_refused_and_seen(server: Server) -> None:
    new = server.claim(RESULT)
    error = server.refused(replace(new, uid="old"))
    assert isinstance(error, ClaimError)
    assert f"replaced by another of the same name (UID {new.uid})" in str(error)
    assert [c.ref for c in server.seen] == [new]


def test_a_claim_that_is_gone_is_refused(server: Server) -> None:
    error = server.refused(ClaimRef("default", "claim", "uid"))
    assert type(error) is ClaimError
    assert "does not exist" in str(error)


UNREADABLE = {
    "forbidden": (
        ForbiddenError("no", status=403),
        ["not allowed to read the claim: no", "get on resourceclaims.resource.k8s.io"],
    ),
    "no answer": (UnavailableError("refused"), ["cannot read the claim", "refused", "tried again"]),
}


@pytest.mark.parametrize("case", UNREADABLE)
def test_of_a_claim_that_cannot_be_read_nothing_is_said(server: Server, case: str) -> None:
    ref = server.claim(RESULT)
    server.refuse, parts = UNREADABLE[case]
    error = server.refused(ref)
    assert isinstance(error, ClaimUnreadableError)
    for part in parts:
        assert part in str(error)
    assert server.seen == []


def config(parameters: Obj, **more: object) -> Obj:
    opaque = {"driver": DRIVER, "parameters": parameters}
    return {"source": "FromClaim", "opaque": opaque} | more


BAD: tuple[tuple[Obj, list[str]], ...] = (
    ({**MIG_CONFIG, "shares": {}}, ["'shares'", "unknown field"]),
    ({**MIG_CONFIG, "share": {"memory": 1}}, ["'share.memory'", "unknown field"]),
    ({**MIG_CONFIG, "sharing": {"strategy": "TimeSlicing"}}, ["for slices are: None, MPS"]),
    ({**MIG_CONFIG, "placement": {"policy": "best"}}, ["'placement.policy'"]),
    ({**MIG_CONFIG, "placement": {"strategy": "sws"}}, ["'placement.strategy'", "unknown field"]),
    ({"apiVersion": "v9", "kind": "Other"}, ["apiVersion and kind"]),
)


@pytest.mark.parametrize(("parameters", "parts"), BAD)
@pytest.mark.parametrize("requests", [{}, {"requests": ["r0"]}, {"requests": ["r0/large"]}])
def test_a_bad_configuration_is_refused_with_the_path_of_the_field(
    server: Server, parameters: Obj, parts: list[str], requests: Obj
) -> None:
    given = (config(MIG_CONFIG), config(parameters, **requests))
    error = server.refused(server.claim(RESULT | {"request": "r0/large"}, config=given))
    assert isinstance(error, ClaimError)
    for part in ("status.allocation.devices.config[1].opaque.parameters (FromClaim)", *parts):
        assert part in str(error)


GPU_CONFIG = {**MIG_CONFIG, "kind": "GpuConfig"}
MPS = {"sharing": {"strategy": "MPS"}}


def test_sharing_is_read_for_each_device(server: Server) -> None:
    given = (config(GPU_CONFIG | {"sharing": {"strategy": "TimeSlicing"}}, requests=["r1"]),)
    results = (RESULT, RESULT | {"request": "r1", "device": "gpu-1"})
    a_slice, whole = server.read(server.claim(*results, config=given))
    assert (a_slice.sharing.interval, whole.sharing.interval) == ("", "Default")


@pytest.mark.parametrize(
    ("devices", "parameters", "told"),
    [
        ([GOOD], GPU_CONFIG | MPS, f"not for {GOOD}, which is a slice: write kind MigDeviceConfig"),
        (["gpu-1"], MIG_CONFIG | MPS, "not for gpu-1, which is a whole GPU: write kind GpuConfig"),
        ([GOOD], GPU_CONFIG | {"share": {"cores": 30}}, f"not for {GOOD}, which is a slice, and"),
        (["gpu-1", "gpu-2"], GPU_CONFIG | MPS, "with sharing.strategy 'MPS', this one holds 2"),
    ],
)
def test_sharing_that_the_devices_cannot_have_is_refused(
    server: Server, devices: list[str], parameters: Obj, told: str
) -> None:
    results = [RESULT | {"request": f"r{i}", "device": d} for i, d in enumerate(devices)]
    error = server.refused(server.claim(*results, config=(config(parameters),)))
    assert isinstance(error, ClaimError)
    assert told in str(error)
    assert "create the pod again" in str(error)


def test_configuration_of_other_drivers_and_other_requests_is_not_read(server: Server) -> None:
    bad: Obj = {"nonsense": True}
    given = (
        config(MIG_CONFIG, requests=["r0"]),
        config(bad, requests=["r1"]),
        {"source": "FromClass", "opaque": {"driver": "other.example.com", "parameters": bad}},
        {"source": "FromClass"},
    )
    assert server.read(server.claim(RESULT, config=given))


def test_more_parameters_than_are_read_are_refused_and_not_passed_over(server: Server) -> None:
    opaque = {"driver": DRIVER, "parameters": {**MIG_CONFIG, "x": "y" * 9000}}
    error = server.refused(
        server.claim(RESULT, config=({"source": "FromClaim", "opaque": opaque},))
    )
    assert isinstance(error, ClaimError)
    for part in ("parameters for driver mig.dra.dev have 90", "and 8192 are read", "correct the"):
        assert part in str(error)
