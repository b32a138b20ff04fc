"""Configurations, good and bad, and who refuses the bad ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

OURS, THEIRS = "mig.dra.dev/v1alpha1", "resource.nvidia.com/v1beta1"
SLICE = {"apiVersion": OURS, "kind": "MigDeviceConfig"}
GPU = {"apiVersion": OURS, "kind": "GpuConfig"}
THEIR_SLICE = {"apiVersion": THEIRS, "kind": "MigDeviceConfig"}
THEIR_GPU = {"apiVersion": THEIRS, "kind": "GpuConfig"}


@dataclass(frozen=True)
class Bad:
    """A configuration of a claim that lint and the controller's condition refuse.

    ``path`` and ``told``: the field, and words of the message. ``types``: True if it contradicts a
    type, so that the API server refuses it at creation, too, with the path ``at`` if that differs.
    """

    parameters: Any
    path: str
    told: str
    types: bool = True
    at: str | None = None

    @property
    def admission_path(self) -> str:
        """Path of the field, as the API server tells it."""
        return self.path if self.at is None else self.at


def placed(placement: Any) -> dict[str, Any]:
    return {**SLICE, "placement": placement}


def near(nodes: Any) -> dict[str, Any]:
    return placed({"nodes": nodes})


def shared(head: dict[str, Any], strategy: str, **settings: Any) -> dict[str, Any]:
    return {**head, "sharing": {"strategy": strategy, **settings}}


def their_mps(**config: Any) -> dict[str, Any]:
    return shared(THEIR_GPU, "MPS", mpsConfig=config)


_STRATEGIES = "allowed are: MPS, None, TimeSlicing"
_THREADS = "sharing.mps.activeThreadPercentage"
_LIMIT = "sharing.mps.pinnedDeviceMemoryLimit"
_THEIR_LIMIT = "sharing.mpsConfig.defaultPinnedDeviceMemoryLimit"

BAD = {
    "unknown field": Bad({**SLICE, "shares": {}}, "shares", "unknown field"),
    "unknown field inside": Bad(placed({"strategy": "sws"}), "placement.strategy", "unknown field"),
    "unknown field deep": Bad(
        near({"policy": "none", "weight": 1}), "placement.nodes.weight", "unknown field"
    ),
    "no word": Bad(placed({"policy": "random"}), "placement.policy", "random"),
    "number for a word": Bad(placed({"policy": 3}), "placement.policy", "int"),
    "object for a word": Bad(placed({"policy": {"a": 1}}), "placement.policy", "object"),
    "list for an object": Bad(placed([]), "placement", "array"),
    "text for an object": Bad(near("spread"), "placement.nodes", "str"),
    "null for an object": Bad({**SLICE, "share": None}, "share", "null"),
    "missing word": Bad(near({}), "placement.nodes.policy", "missing"),
    "no node policy": Bad(near({"policy": "pack"}), "placement.nodes.policy", "pack"),
    "empty list": Bad(near({"policy": "spread", "by": []}), "placement.nodes.by", "length"),
    "no list": Bad(near({"policy": "spread", "by": "cpu"}), "placement.nodes.by", "str"),
    "no word in a list": Bad(
        near({"policy": "spread", "by": ["cpu", "gpu"]}),
        "placement.nodes.by[1]",
        "gpu",
        at="placement.nodes.by",
    ),
    "word twice": Bad(
        near({"policy": "spread", "by": ["cpu", "cpu"]}), "placement.nodes.by", "twice", types=False
    ),
    "another version": Bad({**SLICE, "apiVersion": "mig.dra.dev/v2"}, "", "mig.dra.dev/v2"),
    "another kind": Bad({**SLICE, "kind": "VfioConfig"}, "", "'VfioConfig'"),
    "no version": Bad({"kind": "MigDeviceConfig"}, "", "None"),
    "nothing": Bad({}, "", "None"),
    "number for a version": Bad({**SLICE, "apiVersion": 1}, "", "a int"),
    "list for a kind": Bad({**SLICE, "kind": ["GpuConfig"]}, "", "a list"),
    "tenants in a claim": Bad(
        {**GPU, "share": {"tenants": "any"}},
        "share.tenants",
        "only a DeviceClass may say it",
        types=False,
    ),
    "no memory": Bad({**GPU, "share": {"memoryMiB": 0}}, "share.memoryMiB", ">= 1"),
    "half a MiB": Bad({**GPU, "share": {"memoryMiB": 0.5}}, "share.memoryMiB", "float"),
    "truth for a number": Bad({**GPU, "share": {"cores": True}}, "share.cores", "bool"),
    "too many cores": Bad({**GPU, "share": {"cores": 101}}, "share.cores", "<= 100"),
    "no deed": Bad(
        {**SLICE, "preparation": {"onFailure": "cry"}}, "preparation.onFailure", "evict, wait"
    ),
    "no strategy": Bad({**SLICE, "sharing": {}}, "sharing.strategy", f"missing; {_STRATEGIES}"),
    "small letters": Bad(shared(GPU, "mps"), "sharing.strategy", _STRATEGIES),
    "turns on a slice": Bad(
        shared(SLICE, "TimeSlicing"), "sharing.strategy", "for slices are: None, MPS", types=False
    ),
    "unknown sharing": Bad(shared(GPU, "MPS", maxClients=2), "sharing.maxClients", "unknown field"),
    "no interval": Bad(
        shared(GPU, "TimeSlicing", timeSlicing={"interval": "Tiny"}),
        "sharing.timeSlicing.interval",
        "allowed are: Default, Long, Medium, Short",
    ),
    "turns for MPS": Bad(
        shared(GPU, "MPS", timeSlicing={"interval": "Short"}),
        "sharing.timeSlicing",
        "leave it out",
        types=False,
    ),
    "MPS for turns": Bad(
        shared(GPU, "TimeSlicing", mps={"activeThreadPercentage": 5}),
        "sharing.mps",
        "choose 'MPS'",
        types=False,
    ),
    "no threads": Bad(shared(SLICE, "MPS", mps={"activeThreadPercentage": 0}), _THREADS, ">= 1"),
    "threads as text": Bad(
        shared(SLICE, "MPS", mps={"activeThreadPercentage": "5"}), _THREADS, "str"
    ),
    "too many threads": Bad(
        shared(SLICE, "MPS", mps={"activeThreadPercentage": 101}), _THREADS, "<= 100"
    ),
    **{
        f"limit {text!r}": Bad(
            shared(SLICE, "MPS", mps={"pinnedDeviceMemoryLimit": text}),
            _LIMIT,
            "such as 512Mi or 8Gi",
            types=False,
        )
        for text in ("8G", "0Mi", "-1Gi", "1.5Gi", "8Gi\nquit", "8 Gi", "99999999Gi")
    },
    "number for a limit": Bad(
        shared(SLICE, "MPS", mps={"pinnedDeviceMemoryLimit": 8}), _LIMIT, "int"
    ),
    "their other kind": Bad(
        {**THEIR_GPU, "kind": "VfioDeviceConfig"},
        "kind",
        "allowed are: GpuConfig, MigDeviceConfig",
        at="",
    ),
    "their sharing without a strategy": Bad(
        {**THEIR_GPU, "sharing": {}}, "sharing.strategy", "missing; allowed are: MPS, TimeSlicing"
    ),
    "our strategy for theirs": Bad(
        shared(THEIR_GPU, "None"), "sharing.strategy", "MPS, TimeSlicing"
    ),
    "our field in theirs": Bad(
        {**THEIR_GPU, "placement": {"policy": "sws"}}, "placement", "unknown field"
    ),
    "their turns on a slice": Bad(
        shared(THEIR_SLICE, "TimeSlicing", timeSlicingConfig={}),
        "sharing.timeSlicingConfig",
        "unknown field",
    ),
    "their turns for MPS": Bad(
        shared(THEIR_GPU, "MPS", timeSlicingConfig={}),
        "sharing.timeSlicingConfig",
        "choose 'TimeSlicing'",
        types=False,
    ),
    "their MPS for turns": Bad(
        shared(THEIR_SLICE, "TimeSlicing", mpsConfig={}),
        "sharing.mpsConfig",
        "choose 'MPS'",
        types=False,
    ),
    "their limits by device": Bad(
        their_mps(defaultPerDevicePinnedMemoryLimit={"0": "1Gi"}),
        "sharing.mpsConfig.defaultPerDevicePinnedMemoryLimit",
        "unknown field",
    ),
    **{
        f"their limit {limit!r}": Bad(
            their_mps(defaultPinnedDeviceMemoryLimit=limit),
            _THEIR_LIMIT,
            "such as 512Mi",
            types=False,
        )
        for limit in ("", "much", "-1Gi", "1023Ki", 0, "1Gi\nquit")
    },
}

GOOD = {
    "ours": SLICE,
    "ours for GPUs": GPU,
    "theirs": THEIR_SLICE,
    "all that a slice may say": {
        **placed({"policy": "spread", "nodes": {"policy": "binpack", "by": ["memory", "cpu"]}}),
        "preparation": {"onFailure": "evict", "bindWhen": "made"},
        "share": {"memoryMiB": 1, "cores": 0},
        "sharing": {
            "strategy": "MPS",
            "mps": {"activeThreadPercentage": 100, "pinnedDeviceMemoryLimit": "8Gi"},
        },
    },
    "turns": shared(GPU, "TimeSlicing", timeSlicing={"interval": "Long"}),
    "nulls": {**GPU, "share": {"memoryMiB": None, "cores": None}},
    "empty objects": {**SLICE, "placement": {}, "preparation": {}, "share": {}},
    "their null": {**THEIR_GPU, "sharing": None},
    "their number": their_mps(defaultPinnedDeviceMemoryLimit=2**31),
    "their nulls": their_mps(defaultPinnedDeviceMemoryLimit=None),
    "their turns": shared(THEIR_GPU, "TimeSlicing", timeSlicingConfig={"interval": "Short"}),
}
