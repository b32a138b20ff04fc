"""One slice for one request, decided by the states that GPUs are in, of which there are few."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from heapq import heapify, heappop, heapreplace
from typing import NamedTuple

from dra.allocator.fleet import Fleet
from dra.allocator.gpustate import GpuId, GpuState
from dra.allocator.problem import OpenRequest
from dra.allocator.score import Cost, find_policy
from dra.allocator.search.constraints import of_shares
from dra.cel.kinds import Kinds
from dra.cel.offers import GpuKind, Offer
from dra.claims.wants import ClaimWants
from dra.gpu.geometry import Placement


class Candidate(NamedTuple):
    """One slice of one GPU that would serve a request. Lower costs are better."""

    cost: Cost
    gpu: GpuId
    offer: Offer
    placement: Placement


def single_request(claims: Sequence[ClaimWants], kinds: Kinds) -> OpenRequest | None:
    """The only request, if it is for one device that any GPU of a kind would serve alike."""
    claim = claims[0]
    if len(claims) > 1 or len(claim.choices) != 1 or claim.constraints:
        return None
    want = claim.choices[0][0]
    if want.count > 1 or want.everything or kinds.tells_gpus_apart(want.expressions):
        return None
    return OpenRequest(claim.claim.ref, want)


def goes_anywhere(request: OpenRequest, fleet: Fleet) -> bool:
    """True if for a single request the first of ``slices`` on a fitting node is the best.

    It is not if the request prefers nodes, or claims may share slices.
    """
    if request.want.nodes.policy != "none":
        return False
    return not fleet.shared or not of_shares(fleet.kinds.selected(request.want.expressions))


def slices(
    fleet: Fleet, request: OpenRequest, only: Mapping[Hashable, GpuId] | None = None
) -> Iterator[Candidate]:
    """Slices for a single request, best first; of each GPU the best comes before its others.

    Smaller profiles, then lower costs come first; ties go to the lower node name, then the lower
    GPU. ``only``: slices of these GPUs alone, one for each fingerprint. The fleet must not change
    meanwhile. Raises SelectorError.
    """
    want = request.want
    policy = find_policy(want.policy, namespace=request.claim.namespace, idle=fleet.has_idle)
    by_size: dict[int, list[tuple[int, Offer, int, GpuKind]]] = {}
    for kind, makers in fleet.makers.items():
        for rank, offer in enumerate(fleet.kinds.match_kind(want.expressions, kind).offers):
            if offer.profile is not None and offer.profile.id in makers:
                by_size.setdefault(offer.size, []).append((rank, offer, offer.profile.id, kind))
    for size in sorted(by_size):
        heap: list[_Entry] = []
        for rank, offer, profile, kind in by_size[size]:
            for fingerprint, group in fleet.makers[kind][profile].items():
                state, table = group.state, group.state.table
                if table is None or (only is not None and fingerprint not in only):
                    continue
                seen = state.situation(fleet.weights(table))
                members = group.members if only is None else [only[fingerprint]]
                first = members[0]
                heap += [
                    (policy(seen, move), first, rank, n, 0, members, offer, move.placement)
                    for n, move in enumerate(group.moves[profile])
                ]
        heapify(heap)
        while heap:
            cost, gpu, rank, n, at, members, offer, placement = heap[0]
            yield Candidate((float(size), *cost), gpu, offer, placement)
            at += 1
            if at < len(members):
                entry = (cost, members[at], rank, n, at, members, offer, placement)
                heapreplace(heap, entry)
            else:
                heappop(heap)


_Entry = tuple[Cost, GpuId, int, int, int, list[GpuId], Offer, Placement]
"""Entry of a heap; its first four fields are never all equal to those of another.

Cost, GPU, rank of the offer, rank of the placement, index of the GPU in the members of its group,
these members, offer, placement.
"""


def best_slice(fleet: Fleet, request: OpenRequest, states: Iterable[GpuState]) -> Candidate | None:
    """The best of ``slices`` on the GPUs in ``states``; None without one."""
    ids: dict[Hashable, GpuId] = {}
    for state in states:
        ids[state.fingerprint] = min(state.id, ids.get(state.fingerprint, state.id))
    return next(slices(fleet, request, ids), None)
