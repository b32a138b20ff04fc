"""Fullness of nodes, and the order in which it prefers them. Pure."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import NamedTuple

from api.config import NO_PREFERENCE, NodePolicy, NodesConfig
from dra.allocator.fleet import Fleet, NodeGpus
from dra.allocator.gpustate import GpuState
from dra.allocator.problem import Problem
from dra.claims.sharing import OFFERED
from dra.claims.wants import ClaimWants, is_mixed
from dra.common.resources import ObjectKey
from dra.gpu.inventory import HOST_USERS_ONLY, Gpu
from dra.gpu.shares import HAMI_CORE
from dra.pods.nodefit import Misfit, MisfitReason, find_barrier, find_misfit
from dra.pods.residents import Hosts
from dra.pods.selectors import matches_selector

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


def preference(claims: Iterable[ClaimWants]) -> NodesConfig:
    """Preference of the first request that has one: all go to one node."""
    stated = (want.nodes for claim in claims for want in claim.wants)
    return next((nodes for nodes in stated if nodes.policy != "none"), NO_PREFERENCE)


def node_tiers(
    nodes: NodesConfig, fleet: Fleet, hosts: Hosts, *, pod: ObjectKey
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
            if node.fingerprints not in fingerprints:
                fingerprints[node.fingerprints] = _gpus(node)
            taken.append(fingerprints[node.fingerprints])
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
    slices = state.table.geometry.memory_slices if state.table else 1
    return (slices if state.whole_held else state.usage.mask.bit_count()), slices


_ONE_LIMIT = Misfit(
    MisfitReason.SHARING,
    "HAMi-core on the node has one limit for all devices of a claim: write a claim for each",
)
_HOST_USERS = Misfit(
    MisfitReason.HOST_USERS,
    "a pod with 'hostUsers: false' needs device nodes in the host's /dev, where the node's plugin "
    "cannot make any",
)
_BOUND = Misfit(MisfitReason.BOUND, "pod is bound to another node")


class Places:
    """The nodes of ``fleet`` and ``hosts``; nothing of them is changed.

    ``delegated`` are the extended resources that a class of ours serves, so that nodes need not
    count them.
    """

    def __init__(
        self, fleet: Fleet, hosts: Hosts, delegated: AbstractSet[str] = frozenset()
    ) -> None:
        self.fleet = fleet
        self.hosts = hosts
        self.delegated = delegated

    def find_misfit(
        self, problem: Problem, node: str, claims: Sequence[ClaimWants] = ()
    ) -> Misfit | None:
        """Misfit of the pod and ``node`` whatever its GPUs; None when it can go there.

        ``claims`` are those of ``problem`` with one choice for each request, where it is made.

        A pod that is bound may have named its node itself (``spec.nodeName``), past kube-scheduler:
        what the node bars is barred to it as well. Of resources kubelet judges.
        """
        pod = problem.pod
        facts = self.hosts.facts.get(node)
        if facts is None:
            return Misfit(MisfitReason.NO_NODE, "no such Node")
        lack = self._find_lack(claims or problem.claims, node)
        if pod.needs.own_users and self._has_host_users_only(node):
            lack = _HOST_USERS
        if pod.node and not lack:
            return find_barrier(pod.needs, facts) if pod.node == node else _BOUND
        if problem.pins and not all(matches_selector(p, facts.labels, node) for p in problem.pins):
            return Misfit(MisfitReason.ELSEWHERE, "claims of the pod are allocated elsewhere")
        if lack or node in problem.excluded:
            return lack or Misfit(MisfitReason.LEFT_OUT, problem.excluded[node])
        used = {} if problem.makes_room else self.hosts.used(node, without=pod.key)
        misfit = find_misfit(pod.needs, facts, used, delegated=self.delegated)
        if problem.rules is None:
            return misfit
        return misfit or problem.rules.find_misfit(facts)

    def _has_host_users_only(self, node: str) -> bool:
        known = self.fleet.nodes.get(node)
        return known is not None and HOST_USERS_ONLY in known.inventory.capabilities

    def _find_lack(self, claims: Sequence[ClaimWants], node: str) -> Misfit | None:
        """Misfit of a node that always refuses ``claims`` as they are to share; None of others.

        A request with alternatives lacks something where each of them does.
        """
        for claim in claims:
            if not claim.sharing and len(claim.choices) == 1:
                continue
            known = self.fleet.nodes.get(node)
            if known is None:
                return None
            offered = known.inventory.capabilities
            for alternatives in claim.choices if claim.sharing else ():
                wished = [claim.sharing.get(want.request, "") for want in alternatives]
                if all(each and OFFERED[each] not in offered for each in wished):
                    text = f"the node does not serve sharing.strategy '{wished[0]}'"
                    return Misfit(MisfitReason.SHARING, text)
            if is_mixed(claim) and all(map(_by_hami_core, known.inventory.gpus)):
                return _ONE_LIMIT
        return None

    def preferred(self, problem: Problem) -> Iterator[str]:
        """The names of the nodes, those first that the claims prefer, then by name."""
        nodes = preference(problem.claims)
        for names in node_tiers(nodes, self.fleet, self.hosts, pod=problem.pod.key):
            yield from names


def _by_hami_core(gpu: Gpu) -> bool:
    offers = [offer for offer in (gpu.sharing, gpu.slice_sharing) if offer is not None]
    return bool(offers) and all(offer.enforcer == HAMI_CORE for offer in offers)
