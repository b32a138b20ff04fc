"""Objects of a cluster in which everything happens at random, and what is read from them."""

from __future__ import annotations

from dra.common.quantity import parse_quantity
from dra.common.resources import Obj, at
from dra.gpu.geometry import Profile
from dra.gpu.names import MigDevice, parse_device
from tests.controller.helpers.objects import first_available, request
from tests.dra.gpus import A100

PROFILES = ("1g.5gb", "2g.10gb", "3g.20gb", "7g.40gb")
KEPT_APART = {"app": "apart"}
_TERM = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": KEPT_APART}}
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
NEEDS: tuple[Obj, ...] = (
    {"affinity": {"podAntiAffinity": {_REQUIRED: [_TERM]}}},
    {"affinity": {"podAffinity": {_REQUIRED: [_TERM]}}},
    {"topologySpreadConstraints": [{"maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule", **_TERM}]},
    {"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "missing"}}]},
)
"""Needs of pods besides room; the volume's claim is never made."""
HOPELESS: tuple[Obj, ...] = (
    request("r", "mig-1g.5gb", "device.nonsense("),
    request("r", "mig-1g.5gb", "device.attributes['mig.dra.dev'].nothing == 'x'"),
    request("r", "mig-1g.5gb", "device.attributes['mig.dra.dev'].parentUUID == 'GPU-nowhere'"),
    request("r", "mig-1g.5gb", count=33),
    request("r", "mig-9g.99gb"),
)
"""Requests that are faulty, or that nothing serves."""
PARTS = tuple(
    request("r", "mig-share.dra.dev", capacity={"requests": {"memory": memory}})
    for memory in ("1Gi", "1Gi", "3Gi", "6Gi")
)
"""Requests of shares of slices."""
MANY = first_available(
    "r", *((f"a{n}", f"mig-{PROFILES[-1 - n % 4]}", {"count": 8 - n}) for n in range(8))
)


def keeps_apart(obj: Obj) -> bool:
    """True if a pod shuns those of its kind."""
    return "podAntiAffinity" in obj["spec"].get("affinity", {})


def held(obj: Obj) -> list[tuple[str, MigDevice, Profile]]:
    """Slices that a claim is allocated: node, device and profile of each."""
    allocation = (obj.get("status") or {}).get("allocation")
    if not allocation:
        return []
    (term,) = allocation["nodeSelector"]["nodeSelectorTerms"]
    where, found = term["matchFields"][0]["values"][0], []
    for result in allocation["devices"]["results"]:
        device = parse_device(result["device"])
        assert isinstance(device, MigDevice)
        profile = A100.by_id(device.profile_id)
        assert profile is not None
        found.append((where, device, profile))
    return found


def consumed(obj: Obj, device: MigDevice) -> int:
    """MiB of ``device`` that a claim has, by its allocation."""
    (found,) = (
        at(result, "consumedCapacity", "memory")
        for result in obj["status"]["allocation"]["devices"]["results"]
        if result["device"] == str(device)
    )
    return int(parse_quantity(found) // 2**20)


def claims_of(obj: Obj) -> list[str]:
    """The names of a pod's claims."""
    return [c["resourceClaimName"] for c in obj["spec"]["resourceClaims"]]
