"""Idle slices in the cost of a placement: used again, or destroyed for it. Pure.

They take no room, so that they are no part of a GPU's usage: what can be placed where is the same
with and without them, and only the order of the placements differs.
"""

from __future__ import annotations

from dra.allocator.scoring.moves import Move
from dra.allocator.scoring.score import POLICIES, Cost, Policy, Situation

REUSE_CREDIT = 0.1
"""Worth of an instance that need not be made, in what the first component of a cost counts.

By the default policy, expected memory slices: a slice is used again unless that is as bad as making
a memory slice unusable. The other policies count whole memory slices there: it decides among
placements that are equal by it.
"""


def find_policy(name: str, *, namespace: str, idle: bool) -> Policy:
    """The policy that is called ``name``, for claims of ``namespace``.

    ``idle``: there are idle slices, which it heeds.
    """
    return heeding_idle(POLICIES[name], namespace) if idle else POLICIES[name]


def heeding_idle(policy: Policy, namespace: str) -> Policy:
    """``policy`` for claims of ``namespace``, with regard to the idle slices of a GPU.

    A placement where an idle slice of the namespace lies, of the very profile, is credited. Of
    placements that are equal otherwise, the one that destroys the fewest memory slices of idle ones
    is preferred. Both add up over devices, as long as costs of ``policy`` do.
    """

    def cost(situation: Situation, move: Move) -> Cost:
        first, *rest = policy(situation, move) or (0.0,)
        reused, destroyed = 0, 0
        for idle in situation.idle:
            if (idle.placement, idle.profile_id) == (move.placement, move.profile_id) and (
                idle.namespace == namespace
            ):
                reused = 1
            else:
                destroyed += (idle.placement.mask & move.placement.mask).bit_count()
        return (first - REUSE_CREDIT * reused, *rest, destroyed)

    return cost
