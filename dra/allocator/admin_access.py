"""``adminAccess`` (KEP-5018): claims that look at GPUs and hold nothing.

What is looked at is a whole GPU, in MIG mode or not, whoever uses it: its slices come and go, and
are seen through it. So nothing is made for a view, nothing is withheld from others, and there is
always room.
"""

from __future__ import annotations

from dra.allocator.fleet.view import NodeGpus
from dra.allocator.places import Places
from dra.allocator.problem import Decision, Pick, Problem
from dra.cel.kinds.kinds import Kinds
from dra.claims.allocation import MAX_RESULTS
from dra.claims.requests.wants import Want
from dra.gpu.inventory import Gpu
from dra.gpu.names import gpu_name


def looks_only(problem: Problem) -> bool:
    """True if all claims of a problem only look."""
    return all(claim.views for claim in problem.claims)


def decide_view(problem: Problem, places: Places) -> Decision | None:
    """The preferred node with GPUs that all claims may look at, and where the pod fits."""
    fleet = places.fleet
    for name in places.preferred(problem):
        node = fleet.nodes[name]
        picks = picks_on(problem, node, fleet.kinds)
        if picks is not None and places.find_misfit(problem, name) is None:
            return Decision(name, node.inventory.pool, picks)
    return None


def picks_on(problem: Problem, node: NodeGpus, kinds: Kinds) -> tuple[Pick, ...] | None:
    """The GPUs of ``node`` that all claims may look at; None where there are too few."""
    picks: list[Pick] = []
    for claim in problem.claims:
        free = {state.gpu.name: state.gpu for state in node.gpus}
        for want in claim.wants:
            found = [gpu for gpu in free.values() if _selects(want, gpu, node, kinds)]
            chosen = found if want.everything else found[: want.count]
            if not chosen or (not want.everything and len(chosen) < want.count):
                return None
            for gpu in chosen:
                # A claim is given a device once; other claims may look at it as well.
                del free[gpu.name]
                device = gpu_name(gpu.minor)
                ref = claim.claim.ref
                picks.append(Pick(ref, want.request, gpu.name, device, "", None, admin=True))
        if sum(pick.claim == claim.claim.ref for pick in picks) > MAX_RESULTS:
            return None
    return tuple(picks)


def _selects(want: Want, gpu: Gpu, node: NodeGpus, kinds: Kinds) -> bool:
    return bool(kinds.match(want.expressions, kinds.whole(gpu, node.inventory), gpu).offers)
