"""The places where a pod could be served: GPUs and nodes as they are at the time of a call."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet

from dra.allocator.fleet.view import FleetView
from dra.allocator.node_order import node_tiers, preference
from dra.allocator.problem import Problem
from dra.claims.sharing import OFFERED
from dra.claims.wants import ClaimWants, is_mixed
from dra.gpu.inventory import HOST_USERS_ONLY, Gpu
from dra.gpu.shares import HAMI_CORE
from dra.pods.nodefit import Misfit, MisfitReason, find_barrier, find_misfit
from dra.pods.residents import Hosts
from dra.pods.selectors import matches_selector

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
        self, fleet: FleetView, hosts: Hosts, delegated: AbstractSet[str] = frozenset()
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
