"""Devices of a claim on this node as they are read, and every reason to refuse the claim."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dra.claims.allocation import AllocatedDevice
from dra.claims.claims import Claim
from dra.common.resources import RESOURCE_CLAIMS, Obj
from dra.gpu.geometry import Geometry, Placement, Profile
from dra.gpu.inventory import ClaimRef, GpuReason
from dra.kube.client import KubeApi
from dra.kube.errors import ForbiddenError, KubeError, UnavailableError
from kubeletplugin.claims.lookup import ClaimReader, ClaimUnreadableError
from kubeletplugin.claims.wanted import intent
from kubeletplugin.errors import ClaimError, DeviceError, PluginError
from kubeletplugin.gpus.gpu import GpuUnit
from kubeletplugin.gpus.hardware import Hardware
from kubeletplugin.journal.entries import Entry
from kubeletplugin.nvml.gpus import Card
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


# -- devices of a claim as the node has them, and every reason to refuse one


REF = ClaimRef("default", "claim", "uid")


SMALL = Profile(19, "1g.5gb", 1, 4864, 14, (Placement(0, 1), Placement(4, 1)))


LARGE = Profile(9, "3g.20gb", 3, 19968, 42, (Placement(0, 4), Placement(4, 4)))


WITH_ENGINES = Profile(20, "1g.5gb+me", 1, 4864, 14, (Placement(0, 1),))


CARD = Card(
    "GPU-a",
    0,
    mig_capable=True,
    mig_enabled=True,
    mig_pending=True,
    geometry=Geometry((SMALL, LARGE, WITH_ENGINES)),
)


WHOLE = Card("GPU-b", 1)


class Node(Hardware):
    """GPUs that were found."""

    def __init__(self, *cards: Card) -> None:
        self.boot_id = "boot"
        self.found = [GpuUnit(n, card, pcie_root="") for n, card in enumerate(cards)]

    def units(self) -> tuple[GpuUnit, ...]:
        return tuple(self.found)


def given(device: str, *, admin_access: bool = False) -> AllocatedDevice:
    return AllocatedDevice("r0/large", DRIVER, POOL, device, admin_access=admin_access)


def wanted(device: AllocatedDevice, node: Node) -> tuple[GpuUnit, Entry]:
    return intent(device, REF, node, total=2)


NOT_HERE = {
    "no name": ("gpu0-1g", CARD, ["'gpu0-1g'", "must be allocated by this driver"]),
    "a name with zeros": ("gpu-0-mig-1g5gb-019-4", CARD, ["neither gpu-<minor> nor"]),
    "no such GPU": ("gpu-5-mig-1g5gb-19-4", CARD, ["no GPU called gpu-5", "it has: gpu-0"]),
    "no such profile": (
        "gpu-0-mig-9g5gb-99-4",
        CARD,
        ["no profile 9g5gb-99; it has: 1g.5gb (1g5gb-19), 3g.20gb (3g20gb-9), "],
    ),
    "another profile's name": ("gpu-0-mig-1g6gb-19-4", CARD, ["no profile 1g6gb-19;"]),
    "another profile's number": ("gpu-0-mig-1g5gb-20-0", CARD, ["no profile 1g5gb-20;"]),
    "no profiles": (
        "gpu-0-mig-1g5gb-19-4",
        replace(CARD, geometry=None),
        ["no profile 1g5gb-19; it has: none"],
    ),
    "no such place": (
        "gpu-0-mig-1g5gb-19-3",
        CARD,
        ["1g.5gb on gpu-0 cannot start at memory slice 3; it can at: 0, 4"],
    ),
    "whole in MIG mode": ("gpu-0", CARD, ["gpu-0 (GPU-a) is in MIG mode", "largest profile"]),
    "whole with a trouble": (
        "gpu-0",
        replace(WHOLE, problem="it is sick", reason=GpuReason.NVML_ERROR),
        ["gpu-0 (GPU-b) cannot be used: it is sick"],
    ),
}


@pytest.mark.parametrize("case", NOT_HERE)
def test_what_the_node_does_not_have_is_refused_with_what_it_has(case: str) -> None:
    device, card, parts = NOT_HERE[case]
    with pytest.raises(DeviceError) as error:
        wanted(given(device), Node(card))
    for part in parts:
        assert part in str(error.value)


def test_a_whole_gpu_that_is_not_healthy_is_refused() -> None:
    node = Node(WHOLE)
    node.found[0].unhealthy = "XID 79"
    with pytest.raises(DeviceError, match=r"gpu-0 \(GPU-b\) cannot be used: XID 79"):
        wanted(given("gpu-0"), node)


def test_a_profile_that_was_struck_off_is_refused_with_the_reason() -> None:
    node = Node(CARD)
    node.found[0].strike(19, "it was not to be had")
    with pytest.raises(DeviceError, match=r"no profile 1g5gb-19 now: it was not to be had; .*s;"):
        wanted(given(GOOD), node)
