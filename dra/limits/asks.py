"""Asks for slices in the limits of one container.

``nvidia.com/mig-1g.5gb: 2`` asks for two slices of a profile, as in NVIDIA's device plugin.
``nvidia.com/gpu: 2`` with ``nvidia.com/gpumem: 8000`` asks for two slices of 8000 MiB each, as in
HAMi (``pkg/device/nvidia/device.go``: ``GenerateResourceRequests``; without ``nvidia.com/gpu`` for
one, see ``mutateContainerResource``). ``nvidia.com/gpumem-percentage`` states the memory in percent
of a GPU, and counts where there is no amount. In a GPU's MIG mode HAMi chooses a slice by memory
alone; several may lie on one GPU. So ``nvidia.com/gpucores`` beside a limit of memory is dropped,
and alone it means all of the memory. ``nvidia.com/priority`` is between processes that share a GPU
(its chart's ``resourcePriority``, which its scheduler ignores), and is dropped, too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from dra.common.quantity import QuantityError, parse_quantity
from dra.common.resources import Obj, at

GPUS = "nvidia.com/gpu"
MEMORY = "nvidia.com/gpumem"
PERCENTAGE = "nvidia.com/gpumem-percentage"
CORES = "nvidia.com/gpucores"
PRIORITY = "nvidia.com/priority"
BESIDE_MEMORY = (GPUS, PERCENTAGE, CORES, PRIORITY)
"""Limits that belong to an ask by memory."""

MOST = 64
"""Slices of one kind for one container: what a node with nine GPUs has of the smallest."""

_MOST_MEMORY = 10**9
_ALL = 100

_PROFILE = re.compile(r"nvidia\.com/mig-[1-9][0-9]*g\.[1-9][0-9]*gb(\.[a-z]+)*(-me)?")
_RENAMED = ".shared"
"""End of the names that the device plugin gives to slices which it shares by time-slicing."""

_NODE_POLICY = "hami.io/node-scheduler-policy"
_GPU_POLICY = "hami.io/gpu-scheduler-policy"
_POLICIES = ("binpack", "spread")


def is_profile(resource: str) -> bool:
    """True for the extended resource of a profile: ``nvidia.com/mig-1g.5gb``."""
    return _PROFILE.fullmatch(resource) is not None and not resource.endswith(_RENAMED)


def is_zero(amount: Any) -> bool:
    """True for an amount that asks for nothing."""
    try:
        return not parse_quantity(str(amount))
    except QuantityError:
        return False


def preferences(annotations: Mapping[str, Any]) -> str:
    """End of the names of a pod's templates, by HAMi's annotations: ``-node-binpack-gpu-spread``.

    Empty where they say nothing; other words than ``binpack`` and ``spread`` count as nothing.
    """
    found = (("node", annotations.get(_NODE_POLICY)), ("gpu", annotations.get(_GPU_POLICY)))
    return "".join(f"-{level}-{policy}" for level, policy in found if policy in _POLICIES)


def asks(container: Obj, suffix: str = "") -> dict[str, int]:
    """Number of slices by the name of their template, which ends with ``suffix``.

    An amount that is not a whole number from 1 on, or asks for more slices than ``MOST``, is no
    ask: the limit stays, for whoever else serves it.
    """
    amounts = _amounts(container)
    found = {f"{_dashed(name)}{suffix}": amounts[name] for name in _profiles(amounts)}
    if memory := _memory(amounts):
        found[f"{memory}{suffix}"] = amounts.get(GPUS, 1)
    return found


def served(container: Obj) -> set[str]:
    """Names of a container's limits that become asks."""
    amounts = _amounts(container)
    beside = {MEMORY, *BESIDE_MEMORY} & amounts.keys() if _memory(amounts) else set()
    return {*_profiles(amounts), *beside}


def _amounts(container: Obj) -> dict[str, int]:
    limits = at(container, "resources", "limits", default={})
    return {name: _whole(amount) for name, amount in limits.items()}


def _profiles(amounts: Mapping[str, int]) -> list[str]:
    return [name for name, count in amounts.items() if is_profile(name) and 0 < count <= MOST]


def _memory(amounts: Mapping[str, int]) -> str:
    """Start of the name of a template by memory, such as ``nvidia.com-gpumem-8000``; or empty."""
    if not 0 < amounts.get(GPUS, 1) <= MOST:
        return ""
    if MEMORY in amounts:
        memory = amounts[MEMORY]
        return f"{_dashed(MEMORY)}-{memory}" if 0 < memory < _MOST_MEMORY else ""
    if PERCENTAGE in amounts:
        percent = amounts[PERCENTAGE]
    else:
        percent = _ALL if 0 < amounts.get(CORES, 0) <= _ALL else 0
    return f"{_dashed(PERCENTAGE)}-{percent}" if 0 < percent <= _ALL else ""


def _dashed(resource: str) -> str:
    return resource.replace("/", "-")


def _whole(amount: Any) -> int:
    """``amount`` if it is a quantity and a whole number; 0 otherwise."""
    try:
        number = parse_quantity(amount)
    except QuantityError:
        return 0
    return int(number) if number.denominator == 1 else 0
