"""``adminAccess`` (KEP-5018): claims that look at GPUs and hold nothing.

Such a claim is given whole GPUs, in MIG mode or not, whoever uses them: their slices come and go,
and are seen through the GPU. Nothing is made for it or kept from others, so there is always room.
"""

from __future__ import annotations

from collections.abc import Sequence

from dra.allocator.fleet import NodeGpus
from dra.allocator.places import Places
from dra.allocator.problem import Decision, Pick, Problem
from dra.cel.kinds import Kinds
from dra.claims.allocation import MAX_RESULTS
from dra.claims.wants import Want
from dra.gpu.inventory import Gpu
from dra.gpu.names import gpu_name


def looks_only(problem: Problem) -> bool:
    """True if all claims of a problem only look."""
    return all(claim.views for claim in problem.claims)


def decide_view(problem: Problem, places: Places) -> Decision | None:
    """Decision on the first node by preference with GPUs for all claims, where the pod fits."""
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
        chosen = _chosen(claim.wants, node, kinds)
        if chosen is None or len(chosen) > MAX_RESULTS:
            return None
        for want, gpu in chosen:
            device = gpu_name(gpu.minor)
            picks.append(
                Pick(claim.claim.ref, want.request, gpu.name, device, "", None, admin=True)
            )
    return tuple(picks)


def _chosen(
    wants: Sequence[Want], node: NodeGpus, kinds: Kinds
) -> Sequence[tuple[Want, Gpu]] | None:
    """The GPUs that one claim may look at, by want; None where they do not suffice.

    A claim is given a device once; other claims may look at it as well. A want of all devices is
    given each GPU that its selectors select, and None is returned if one of these is not free for
    it.
    """
    gpus = [state.gpu for state in node.gpus]
    places: list[tuple[Want, Sequence[int]]] = []
    for want in wants:
        suits = [n for n, gpu in enumerate(gpus) if _selects(want, gpu, node, kinds)]
        if not suits:
            return None
        places += [(want, [n]) for n in suits] if want.everything else [(want, suits)] * want.count
    given: dict[int, int] = {}
    if len(places) > len(gpus):
        return None
    if not all(_give(place, places, given, set()) for place in range(len(places))):
        return None
    return [(places[n][0], gpus[gpu]) for n, gpu in sorted((n, gpu) for gpu, n in given.items())]


def _give(
    place: int,
    places: Sequence[tuple[Want, Sequence[int]]],
    given: dict[int, int],
    tried: set[int],
) -> bool:
    """Give ``place`` a GPU, moving others to other GPUs where that helps (an augmenting path).

    Returns False if there is none.
    """
    for gpu in sorted(places[place][1], key=given.__contains__):
        if gpu not in tried:
            tried.add(gpu)
            if gpu not in given or _give(given[gpu], places, given, tried):
                given[gpu] = place
                return True
    return False


def _selects(want: Want, gpu: Gpu, node: NodeGpus, kinds: Kinds) -> bool:
    return bool(kinds.match(want.expressions, kinds.whole(gpu, node.inventory), gpu).offers)
