"""Fullness of nodes, and the order in which it prefers them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from api.config import NodePolicy

_DIGITS = 9
"""Nodes that differ by rounding alone are equally full."""


class Taken(NamedTuple):
    """Amount of a resource that is taken, and its total, in the same unit."""

    requested: float
    allocatable: float


def gpu_memory(gpus: Iterable[tuple[int, int, int]]) -> Taken:
    """The memory of several GPUs; for each its MiB, the memory slices taken, and all it has."""
    known = [(mib, taken / slices) for mib, taken, slices in gpus if slices]
    return Taken(sum(mib * share for mib, share in known), sum(mib for mib, _ in known))


def fullness(resources: Iterable[Taken]) -> float:
    """The mean share that is taken; 0 for an empty node, 1 for a full one.

    A resource that the node has nothing of is left out, as kube-scheduler leaves it out
    (plugin NodeResourcesFit).
    """
    shares = [r.requested / r.allocatable for r in resources if r.allocatable > 0]
    return round(sum(shares) / len(shares), _DIGITS) if shares else 0.0


def tiers(fullness_of: Mapping[str, float], policy: NodePolicy) -> Iterable[list[str]]:
    """Nodes by name in groups that are alike to ``policy``, the group preferred first."""
    sign = {"none": 0, "binpack": -1, "spread": 1}[policy]
    groups: dict[float, list[str]] = {}
    for name, full in fullness_of.items():
        groups.setdefault(sign * full, []).append(name)
    return [sorted(groups[key]) for key in sorted(groups)]
