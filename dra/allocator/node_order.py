"""The order in which nodes are asked, where a class or a claim prefers full or empty ones."""

from __future__ import annotations

from collections.abc import Hashable, Iterable

from api.config import NO_PREFERENCE, NodesConfig
from dra.allocator.fleet.gpustate import GpuState
from dra.allocator.fleet.view import FleetView, NodeGpus
from dra.allocator.scoring.fullness import Taken, fullness, gpu_memory, tiers
from dra.claims.wants import ClaimWants
from dra.common.resources import ObjectKey
from dra.pods.residents import Hosts


def preference(claims: Iterable[ClaimWants]) -> NodesConfig:
    """Preference of the first request that has one: all go to one node."""
    stated = (want.nodes for claim in claims for want in claim.wants)
    return next((nodes for nodes in stated if nodes.policy != "none"), NO_PREFERENCE)


def node_tiers(
    nodes: NodesConfig, fleet: FleetView, hosts: Hosts, *, pod: ObjectKey
) -> Iterable[Iterable[str]]:
    """The fleet's nodes in the groups that ``nodes`` tells apart, the group preferred first.

    Each group is in name order. A node is as full as it is without ``pod``.
    """
    if nodes.policy == "none":
        return [sorted(fleet.nodes)]
    fingerprints: dict[Hashable, Taken] = {}
    full: dict[str, float] = {}
    for name, node in fleet.nodes.items():
        facts = hosts.facts.get(name)
        allocatable = facts.allocatable if facts else {}
        used = hosts.used(name, without=pod)
        taken = []
        for resource in nodes.by:
            if resource != "gpu-memory":
                taken.append(Taken(used.get(resource, 0), allocatable.get(resource, 0)))
                continue
            if node.fingerprint not in fingerprints:
                fingerprints[node.fingerprint] = _gpus(node)
            taken.append(fingerprints[node.fingerprint])
        full[name] = fullness(taken)
    return tiers(full, nodes.policy)


def _gpus(node: NodeGpus) -> Taken:
    """Fullness of the GPUs of which something can be given out."""
    return gpu_memory((s.gpu.memory_mib, *_slices(s)) for s in node.gpus if not s.blocked)


def _slices(state: GpuState) -> tuple[int, int]:
    """Memory slices that are taken, and all of them; a GPU without slices is one.

    Of a GPU that several claims may have, MiB.
    """
    if state.shared is not None:
        return state.shared.memory_mib, state.gpu.memory_mib
    slices = state.geometry_index.geometry.memory_slices if state.geometry_index else 1
    return (slices if state.whole_held else state.usage.mask.bit_count()), slices
