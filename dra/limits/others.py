"""Pods written for other systems, in the words that are understood here, and what has none.

InstaSlice renames ``nvidia.com/mig-*`` in its webhook to ``instaslice.redhat.com/mig-*`` (operator)
or ``mig.das.com/*`` (Dynamic Accelerator Slicer), and adds a gate, a finalizer and a ConfigMap.
Volcano's vGPU plugin counts memory in MiB as HAMi does, unless its ``gpuMemoryFactor`` is not 1.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from dra.common.resources import Obj, at
from dra.limits.asks import CORES, GPUS, MEMORY, MOST, PERCENTAGE, asks, served

Path = tuple[str | int, ...]

_INSTASLICE = re.compile(
    r"(?:instaslice\.redhat\.com/mig-|mig\.das\.com/(?:mig-)?)([1-9][0-9]*g\..+)"
)
_VOLCANO = {
    "volcano.sh/vgpu-number": GPUS,
    "volcano.sh/vgpu-memory": MEMORY,
    "volcano.sh/vgpu-cores": CORES,
    "volcano.sh/vgpu-memory-percentage": PERCENTAGE,
}
_COMPUTE_INSTANCE = re.compile(r"nvidia\.com/mig-[1-9]c\.")
_NOS = re.compile(r"nvidia\.com/gpu-[0-9]+gb")
_DROPPED = re.compile(r"instaslice\.redhat\.com/accelerator-memory-quota|org\.instaslice/.*")
_GATES = ("instaslice.redhat.com/accelerator", "org.instaslice/accelarator")
_SCHEDULERS = ("das-scheduler", "hami-scheduler")
_RUNTIME_CLASS = "nvidia-legacy"
_MODES = ("nvidia.com/vgpu-mode", "volcano.sh/vgpu-mode")
_CHOICES = {
    f"nvidia.com/{word}-{kind}": attribute
    for kind, attribute in (("gputype", "productName"), ("gpuuuid", "parentUUID"))
    for word in ("use", "nouse")
}
_GPU_POLICY = "hami.io/gpu-scheduler-policy"
_REFUSALS = {
    PERCENTAGE: f"it has to be a whole number from 1 to 100, and {GPUS} one from 1 to {MOST}",
    CORES: f"it has to be a whole number from 1 to 100, and {GPUS} one from 1 to {MOST}",
    MEMORY: f"it has to be a whole number of MiB, from 1 on, and {GPUS} one from 1 to {MOST}",
}
"""By limit, the reason why it has no counterpart where it is not understood."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something about a field of a pod: ``refused`` where it has no counterpart here."""

    path: Path
    refused: bool
    message: str


@dataclass(frozen=True, slots=True)
class Translation:
    """A pod in our words. ``slices``: number of them by template, over all containers."""

    pod: Obj
    findings: tuple[Finding, ...]
    slices: dict[str, int]

    @property
    def refused(self) -> bool:
        """True if something has no counterpart, so that the pod should stay as it is."""
        return any(finding.refused for finding in self.findings)


def translate(pod: Obj) -> Translation:
    """The pod, or template of pods, with ``metadata`` and ``spec``, and what is to be said of it.

    A pod that asks other systems for nothing comes back equal, without findings.
    """
    made = copy.deepcopy(pod)
    findings: list[Finding] = []
    concerned = False
    for path, container in _containers(made):
        before = copy.deepcopy(container)
        findings += _of_container(path, container, _rename(container))
        concerned = concerned or before != container or bool(served(container))
    slices: dict[str, int] = {}
    for _, container in _containers(made):
        for template, count in asks(container).items():
            slices[template] = slices.get(template, 0) + count
    if concerned:
        findings += _of_pod(made)
    return Translation(made, tuple(findings), slices)


def _containers(pod: Obj) -> Iterator[tuple[Path, Obj]]:
    for kind in ("initContainers", "containers"):
        for index, container in enumerate(at(pod, "spec", kind)):
            if isinstance(container, dict):
                yield ("spec", kind, index), container


def _rename(container: Obj) -> dict[str, str]:
    """Give limits and requests the names of the device plugin and HAMi; old names by new."""
    former: dict[str, str] = {}
    for part in ("limits", "requests"):
        amounts = at(container, "resources", part, default={})
        for name in [*amounts]:
            new = _VOLCANO.get(name)
            if found := _INSTASLICE.fullmatch(name):
                new = f"nvidia.com/mig-{found[1].replace('+', '.')}"
            if new is not None:
                former[new] = name
                amounts[new] = amounts.pop(name)
            elif _DROPPED.fullmatch(name):
                del amounts[name]
    return former


def _of_container(path: Path, container: Obj, former: dict[str, str]) -> Iterator[Finding]:
    """Findings about limits, under the names that they had."""
    limits = at(container, "resources", "limits", default={})
    understood = served(container)
    for name in limits:
        where = (*path, "resources", "limits", former.get(name, name))
        refusal = "" if name in understood else _refusal(name)
        if refusal:
            yield Finding(where, refused=True, message=refusal)
        elif name == GPUS and not {PERCENTAGE, CORES, MEMORY} & limits.keys():
            message = (
                "a whole GPU stays with the device plugin; here it is a claim of class gpu.dra.dev"
            )
            yield Finding(where, refused=False, message=message)
        elif name == MEMORY and name in former:
            message = "taken for MiB: multiply it where Volcano's gpuMemoryFactor is not 1"
            yield Finding(where, refused=False, message=message)


def _refusal(name: str) -> str:
    """Reason why a limit that is not understood has no counterpart; empty for other resources."""
    if _COMPUTE_INSTANCE.match(name):
        return (
            "compute instances that share a GPU instance are not made: ask for the profile behind "
            "it, or for a smaller one"
        )
    if name.startswith("nvidia.com/mig-"):
        return (
            f"no slice has that name, or not that many: allowed are 1 to {MOST} of a profile such "
            "as nvidia.com/mig-1g.5gb; slices are not shared by time-slicing (.shared)"
        )
    if _NOS.fullmatch(name):
        return f"MPS partitions of nos have no counterpart: say {MEMORY} in MiB for a slice"
    return _REFUSALS.get(name, "")


def _of_pod(pod: Obj) -> Iterator[Finding]:
    """Take off what only serves another system; say what is lost."""
    metadata, spec = at(pod, "metadata", default={}), pod["spec"]
    annotations = at(metadata, "annotations", default={})
    for key in _MODES:
        if "hami-core" in str(annotations.get(key, "")):
            yield Finding(
                ("metadata", "annotations", key),
                refused=True,
                message="limits by a library (hami-core) have no counterpart: a slice has memory "
                "and cores of its own; take the annotation off for one",
            )
        annotations.pop(key, None)
    for key, attribute in _CHOICES.items():
        if key in annotations:
            yield Finding(
                ("metadata", "annotations", key),
                refused=True,
                message="limits do not choose GPUs: write a claim with a selector on attribute "
                f"{attribute}, or a nodeSelector",
            )
    policy = annotations.get(_GPU_POLICY)
    if policy not in (None, "binpack", "spread"):
        yield Finding(
            ("metadata", "annotations", _GPU_POLICY),
            refused=False,
            message=f"{policy!r} counts as nothing here: allowed are binpack and spread",
        )
    _take(metadata, "finalizers", lambda each: each in _GATES)
    _take(spec, "schedulingGates", lambda each: each.get("name") in _GATES)
    if spec.get("schedulerName") in _SCHEDULERS:
        del spec["schedulerName"]
    if spec.get("runtimeClassName") == _RUNTIME_CLASS:
        del spec["runtimeClassName"]


def _take(holder: Obj, field: str, unwanted: Any) -> None:
    """Take entries off a list, and the list if none is left."""
    if field in holder:
        holder[field] = [each for each in holder[field] or () if not unwanted(each)]
        if not holder[field]:
            del holder[field]
