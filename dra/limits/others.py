"""Pods written for other systems, as pods that are understood here, and what has no counterpart.

InstaSlice renames ``nvidia.com/mig-*`` in its webhook to ``instaslice.redhat.com/mig-*`` (operator,
``internal/controller/pod_webhook.go`` until May 2025; it adds a gate, a finalizer, a quota resource
and the variables of a ConfigMap with a UUID as name) or to ``mig.das.com/*`` (Dynamic Accelerator
Slicer, ``pkg/webhook/webhook.go``; it adds a scheduler and a runtime class).

Volcano's vGPU plugin (``pkg/scheduler/api/devices``: ``config/vgpu.go``, ``nvidia/vgpu``) counts
memory in MiB as HAMi does, unless its ``gpuMemoryFactor`` is not 1. A percentage counts before an
amount there. ``volcano.sh/gpu-*`` are the names of its older plugin (volcano-sh/devices).
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from dra.common.resources import Obj, at
from dra.limits.asks import CORES, GPUS, MEMORY, MOST, PERCENTAGE, asks, is_zero, served

MODES = ("nvidia.com/vgpu-mode", "volcano.sh/vgpu-mode")
"""Annotations that say by which means a pod of HAMi's or Volcano's shares GPUs."""

_INSTASLICE = re.compile(
    r"(?:instaslice\.redhat\.com/mig-|mig\.das\.com/(?:mig-)?)([1-9][0-9]*g\..+)"
)
_DAS = "mig.das.com/"
_CONFIG_MAP = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_VOLCANO = {
    "volcano.sh/vgpu-number": GPUS,
    "volcano.sh/vgpu-memory": MEMORY,
    "volcano.sh/vgpu-cores": CORES,
    "volcano.sh/vgpu-memory-percentage": PERCENTAGE,
    "volcano.sh/gpu-number": GPUS,
    "volcano.sh/gpu-memory": MEMORY,
}
_DROPPED = re.compile(r"instaslice\.redhat\.com/accelerator-memory-quota|org\.instaslice/.*")


def rename(container: Obj) -> dict[str, str]:
    """Give limits and requests the names of the device plugin and HAMi.

    Returns the old names by the new ones.
    """
    former: dict[str, str] = {}
    for part in ("limits", "requests"):
        amounts = at(container, "resources", part, default={})
        for name in [*amounts]:
            new = renamed(name)
            if new is not None:
                former[new] = name
                amounts[new] = amounts.pop(name)
            elif _DROPPED.fullmatch(name):
                del amounts[name]
        if PERCENTAGE in former and former.get(MEMORY) and PERCENTAGE in amounts:
            amounts.pop(MEMORY, None)
    if any(_INSTASLICE.fullmatch(name) for name in former.values()):
        take(container, "envFrom", _is_of_instaslice)
    return former


def renamed(name: str) -> str | None:
    """The name here of another system's resource; None for any other."""
    if found := _INSTASLICE.fullmatch(name):
        return f"nvidia.com/mig-{found[1].replace('+', '.')}"
    if name.startswith(_DAS):
        return f"nvidia.com/{name.removeprefix(_DAS)}"
    return _VOLCANO.get(name)


def _is_of_instaslice(source: Obj) -> bool:
    """True for the variables with the UUID of a slice: nobody makes that ConfigMap any more."""
    name = at(source, "configMapRef", default={}).get("name")
    return _CONFIG_MAP.fullmatch(str(name)) is not None


def fill(container: Obj, annotations: Obj) -> None:
    """Limit GPUs without an amount of memory to slices with all of it, if the pod asks for MIG.

    HAMi and Volcano give them 100 percent, in MIG mode too.
    """
    limits = at(container, "resources", "limits", default={})
    in_mig_mode = any(annotations.get(key) == "mig" for key in MODES)
    if (
        in_mig_mode
        and not is_zero(limits.get(GPUS, 0))
        and not {PERCENTAGE, CORES, MEMORY} & limits.keys()
    ):
        limits[PERCENTAGE] = 100


def take(holder: Obj, field: str, unwanted: Any) -> None:
    """Remove ``unwanted`` entries from the list ``field``, and the list if none is left."""
    if field in holder:
        holder[field] = [each for each in holder[field] or () if not unwanted(each)]
        if not holder[field]:
            del holder[field]


Path = tuple[str | int, ...]

_COMPUTE_INSTANCE = re.compile(r"nvidia\.com/mig-[1-9]c\.")
_NOS = re.compile(r"nvidia\.com/gpu-[0-9]+gb")
_GATES = ("instaslice.redhat.com/accelerator", "org.instaslice/accelarator")
_SCHEDULERS = ("das-scheduler", "hami-scheduler")
_RUNTIME_CLASS = "nvidia-legacy"
_OTHER_MODES = {
    "hami-core": "limits by a library (hami-core) have no counterpart: a slice has memory and "
    "cores of its own; take the annotation off for one",
    "mps": "limits do not ask for MPS: write a claim with sharing.strategy 'MPS', or take the "
    "annotation off for a slice",
}
"""By mode, the reason why the mode has no counterpart."""

_CHOICES = {
    f"{prefix}{word}-{kind}": "limits do not choose GPUs: write a claim with a selector on "
    f"attribute {attribute}, or a nodeSelector"
    for prefix, kind, attribute in (
        ("nvidia.com/", "gputype", "productName"),
        ("nvidia.com/", "gpuuuid", "parentUUID"),
        ("volcano.sh/vgpu-", "gpuuuid", "parentUUID"),
    )
    for word in ("use", "nouse")
}
_WITHOUT_EFFECT = {
    "nvidia.com/numa-bind": "it counts as nothing here: for slices beside each other write a claim "
    "with matchAttribute resource.kubernetes.io/pcieRoot",
    "volcano.sh/vgpu-podgroup-policy": "it counts as nothing here: slices are spread over GPUs by "
    "hami.io/gpu-scheduler-policy: spread",
}
_ANNOTATIONS = {
    **{key: (True, message) for key, message in _CHOICES.items()},
    **{key: (False, message) for key, message in _WITHOUT_EFFECT.items()},
}
"""By annotation, whether the pod is refused for it, and why."""

GPUS_ALONE = (
    "without an amount of memory it stays with the device plugin; write a claim of class "
    "gpu.dra.dev for a whole GPU here, or, as HAMi gives all of a GPU's memory, "
    f"'{PERCENTAGE}: 100' beside it for the slice with all of it"
)
"""Answer to a limit of GPUs without an amount of memory or cores."""

_GPU_POLICY = "hami.io/gpu-scheduler-policy"
_REFUSALS = {
    PERCENTAGE: f"it has to be a whole number from 1 to 100, and {GPUS} one from 1 to {MOST}",
    CORES: f"it has to be a whole number from 1 to 100, and {GPUS} one from 1 to {MOST}",
    MEMORY: f"it has to be a whole number of MiB, from 1 on, and {GPUS} one from 1 to {MOST}",
}
"""By limit, the reason why a value that is not understood has no counterpart."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A finding about a field of a pod. ``refused``: the field has no counterpart here."""

    path: Path
    refused: bool
    message: str


@dataclass(frozen=True, slots=True)
class Translation:
    """A pod as this driver reads it. ``slices``: number by template, over all containers.

    ``renamed``: limits that have other names here, by which nothing serves the pod as it is.
    """

    pod: Obj
    findings: tuple[Finding, ...]
    slices: dict[str, int]
    renamed: tuple[str, ...] = ()

    @property
    def refused(self) -> bool:
        """True if something has no counterpart, so that the pod should stay as it is."""
        return any(finding.refused for finding in self.findings)


def translate(pod: Obj) -> Translation:
    """The translation of a pod, or template of pods, with ``metadata`` and ``spec``.

    A pod that asks other systems for nothing is returned equal, without findings.
    """
    made = copy.deepcopy(pod)
    findings: list[Finding] = []
    others: dict[str, None] = {}
    concerned = False
    for path, container in _containers(made):
        before = copy.deepcopy(container)
        former = rename(container)
        others |= dict.fromkeys(former.values())
        fill(container, at(made, "metadata", "annotations", default={}))
        findings += _of_container(path, container, former)
        concerned = concerned or before != container or bool(served(container))
    slices: dict[str, int] = {}
    for _, container in _containers(made):
        for template, count in asks(container).items():
            slices[template] = slices.get(template, 0) + count
    if concerned:
        findings += _of_pod(made)
    return Translation(made, tuple(findings), slices, (*others,))


def _containers(pod: Obj) -> Iterator[tuple[Path, Obj]]:
    for kind in ("initContainers", "containers"):
        for index, container in enumerate(at(pod, "spec", kind)):
            if isinstance(container, dict):
                yield ("spec", kind, index), container


def _of_container(path: Path, container: Obj, former: dict[str, str]) -> Iterator[Finding]:
    """Findings about limits, at the names that the manifest has (``former``: before `rename`)."""
    amounts = at(container, "resources", "limits", default={})
    limits = {name: amount for name, amount in amounts.items() if not is_zero(amount)}
    understood = served(container)
    for name in limits:
        where = (*path, "resources", "limits", former.get(name, name))
        refusal = "" if name in understood else _refusal(name)
        if refusal:
            yield Finding(where, refused=True, message=refusal)
        elif name == GPUS and not {PERCENTAGE, CORES, MEMORY} & limits.keys():
            yield Finding(where, refused=False, message=GPUS_ALONE)
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
            "as nvidia.com/mig-1g.5gb; ask for a part of a slice (.shared) by a claim of class "
            "mig-share.dra.dev"
        )
    if _NOS.fullmatch(name):
        return f"MPS partitions of nos have no counterpart: say {MEMORY} in MiB for a slice"
    return _REFUSALS.get(name, "")


def _of_pod(pod: Obj) -> Iterator[Finding]:
    """Remove what only serves another system; returns findings about what is lost."""
    metadata, spec = at(pod, "metadata", default={}), pod["spec"]
    annotations = at(metadata, "annotations", default={})
    for key in MODES:
        mode = str(annotations.pop(key, ""))
        for word, message in _OTHER_MODES.items():
            if word in mode and "mig" not in mode:
                yield Finding(("metadata", "annotations", key), refused=True, message=message)
    if not annotations:
        metadata.pop("annotations", None)
    for key in sorted(annotations.keys() & _ANNOTATIONS.keys()):
        refused, message = _ANNOTATIONS[key]
        yield Finding(("metadata", "annotations", key), refused=refused, message=message)
    policy = annotations.get(_GPU_POLICY)
    if policy not in (None, "binpack", "spread"):
        yield Finding(
            ("metadata", "annotations", _GPU_POLICY),
            refused=False,
            message=f"{policy!r} counts as nothing here: allowed are binpack and spread",
        )
    take(metadata, "finalizers", lambda each: each in _GATES)
    take(spec, "schedulingGates", lambda each: each.get("name") in _GATES)
    if spec.get("schedulerName") in _SCHEDULERS:
        del spec["schedulerName"]
    if spec.get("runtimeClassName") == _RUNTIME_CLASS:
        del spec["runtimeClassName"]
