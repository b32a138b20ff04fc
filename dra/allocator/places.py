"""Nodes: where a pod may go, how full each is, and the order of preference. Pure."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet

from api.config import NO_PREFERENCE, NodesConfig
from dra.allocator.fleet import Fleet, NodeGpus
from dra.allocator.problem import Problem
from dra.claims.sharing import OFFERED
from dra.claims.wants import ClaimWants
from dra.common.resources import ObjectKey
from dra.gpu.inventory import HOST_USERS_ONLY
from dra.gpu.names import finalizer
from dra.pods.nodefit import Misfit, MisfitReason, find_barrier, find_misfit
from dra.pods.residents import Hosts
from dra.pods.selectors import matches_selector

_DIGITS = 9
"""Digits of a node's fullness that count: nodes that differ by rounding are equally full."""


def preference(claims: Iterable[ClaimWants]) -> NodesConfig:
    """Preference of the first request that has one: all requests of a pod go to one node."""
    stated = (want.nodes for claim in claims for want in claim.wants)
    return next((nodes for nodes in stated if nodes.policy != "none"), NO_PREFERENCE)


def node_tiers(
    nodes: NodesConfig, fleet: Fleet, hosts: Hosts, *, pod: ObjectKey
) -> Iterable[Sequence[str]]:
    """The fleet's nodes in the groups that ``nodes`` tells apart, the group preferred first.

    Each group is in name order. The fullness of a node is the mean of the shares that are taken of
    its resources ``nodes.by``; CPU and memory of ``pod`` itself do not count. A resource that the
    node has nothing of is left out, as by kube-scheduler's plugin NodeResourcesFit.
    """
    if nodes.policy == "none":
        return [sorted(fleet.nodes)]
    sign = -1 if nodes.policy == "binpack" else 1
    of_gpus: dict[Hashable, tuple[float, float]] = {}
    groups: dict[float, list[str]] = {}
    for name, node in fleet.nodes.items():
        facts, used = hosts.facts.get(name), hosts.used(name, without=pod)
        if node.fingerprints not in of_gpus:
            of_gpus[node.fingerprints] = _gpu_memory(node)
        amounts = (
            of_gpus[node.fingerprints]
            if resource == "gpu-memory"
            else (used.get(resource, 0), facts.allocatable.get(resource, 0) if facts else 0)
            for resource in nodes.by
        )
        shares = [taken / total for taken, total in amounts if total > 0]
        full = round(sum(shares) / len(shares), _DIGITS) if shares else 0.0
        groups.setdefault(sign * full, []).append(name)
    return [sorted(groups[key]) for key in sorted(groups)]


def _gpu_memory(node: NodeGpus) -> tuple[float, float]:
    """MiB taken, and MiB in all, of the GPUs of which something can be given out.

    Of a GPU in MIG mode its slices count, of a shared GPU its shares; any other is taken as a
    whole.
    """
    taken = total = 0.0
    for state in (s for s in node.gpus if not s.blocked):
        memory, share = state.gpu.memory_mib, float(state.whole_held)
        if state.shared is not None:
            share = state.shared.memory_mib / memory if memory else 0.0
        elif state.table is not None and not state.whole_held:
            slices = state.table.geometry.memory_slices
            share = state.usage.mask.bit_count() / slices if slices else 0.0
        taken += memory * share
        total += memory
    return taken, total


_HOST_USERS = Misfit(
    MisfitReason.HOST_USERS,
    "a pod with 'hostUsers: false' needs device nodes in the host's /dev, where the node's plugin "
    "cannot make any",
)
_BOUND = Misfit(MisfitReason.BOUND, "pod is bound to another node")
_NO_NODE = Misfit(MisfitReason.NO_NODE, "no such Node")
_UNGATED = Misfit(
    MisfitReason.BY_SCHEDULER,
    "kube-scheduler allocates its GPUs, and chooses the node for a pod without the scheduling gate",
)


class Places:
    """The nodes of ``fleet`` and ``hosts``, neither of which is changed.

    ``delegated``: extended resources that a class of ours serves, so that nodes need not have them.
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
        """Misfit of the pod and ``node``, whatever is free on its GPUs; None when the pod fits.

        ``claims``: those of ``problem`` with one alternative for each request, once these are
        chosen.

        A bound pod may have named its node itself (``spec.nodeName``), past kube-scheduler, so
        taints and selectors are checked for it as well. Resources are not: kubelet judges them.
        """
        pod = problem.pod
        facts = self.hosts.facts.get(node)
        is_gated = finalizer(self.fleet.driver) in pod.gates
        if facts is None or (node in self.fleet.schedulers and not is_gated):
            return _UNGATED if facts is not None else _NO_NODE
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
        """Misfit of a node that cannot share devices in the way of ``claims``; None if it can.

        A request with alternatives is a misfit where each of them is.
        """
        for claim in claims:
            if not claim.sharing:
                continue
            known = self.fleet.nodes.get(node)
            if known is None:
                return None
            offered = known.inventory.capabilities
            for alternatives in claim.choices:
                wished = [claim.sharing.get(want.request, "") for want in alternatives]
                if all(each and OFFERED[each] not in offered for each in wished):
                    text = f"the node does not serve sharing.strategy '{wished[0]}'"
                    return Misfit(MisfitReason.SHARING, text)
        return None

    def preferred(self, problem: Problem) -> Iterator[str]:
        """The names of the nodes, those first that the claims prefer; of equals in name order."""
        nodes = preference(problem.claims)
        for names in node_tiers(nodes, self.fleet, self.hosts, pod=problem.pod.key):
            yield from names
