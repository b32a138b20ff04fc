"""Names that other systems give to slices and their memory, and what their webhooks add to pods.

InstaSlice renames ``nvidia.com/mig-*`` in its webhook to ``instaslice.redhat.com/mig-*`` (operator,
``internal/controller/pod_webhook.go`` until May 2025; it adds a gate, a finalizer, a quota resource
and the variables of a ConfigMap with a UUID as name) or to ``mig.das.com/*`` (Dynamic Accelerator
Slicer, ``pkg/webhook/webhook.go``; it adds a scheduler and a runtime class).

Volcano's vGPU plugin (``pkg/scheduler/api/devices``: ``config/vgpu.go``, ``nvidia/vgpu``) counts
memory in MiB as HAMi does, unless its ``gpuMemoryFactor`` is not 1. A percentage counts before an
amount there. ``volcano.sh/gpu-*`` are the names of its older plugin (volcano-sh/devices).
"""

from __future__ import annotations

import re
from typing import Any

from dra.common.resources import Obj, at
from dra.limits.asks import CORES, GPUS, MEMORY, PERCENTAGE

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
    """Give limits and requests the names of the device plugin and HAMi; old names by new."""
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
    """Say that GPUs without an amount are slices with all of the memory, where MIG is asked for.

    HAMi and Volcano give them 100 percent, in MIG mode too.
    """
    limits = at(container, "resources", "limits", default={})
    in_mig_mode = any(annotations.get(key) == "mig" for key in MODES)
    if in_mig_mode and GPUS in limits and not {PERCENTAGE, CORES, MEMORY} & limits.keys():
        limits[PERCENTAGE] = 100


def take(holder: Obj, field: str, unwanted: Any) -> None:
    """Take entries off a list, and the list if none is left."""
    if field in holder:
        holder[field] = [each for each in holder[field] or () if not unwanted(each)]
        if not holder[field]:
            del holder[field]
