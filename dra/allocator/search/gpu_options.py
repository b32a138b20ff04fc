"""Options of one GPU, whatever it is: cut into slices, whole, or shared by several claims."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain

from dra.allocator.fleet.gpustate import GpuState
from dra.allocator.scoring.geometry_index import GeometryIndex
from dra.allocator.scoring.score import Policy, Weights
from dra.allocator.search.budget import Budget
from dra.allocator.search.constraint_values import ConstraintRules, Vector
from dra.allocator.search.constraints import Allowed, WantType
from dra.allocator.search.options import Option, nothing, slice_options, whole_options
from dra.allocator.search.pricing import Pricing
from dra.allocator.search.share_options import SharesWanted, share_options
from dra.allocator.search.slice_share_options import slice_share_options


class GpuOptions:
    """Sets of devices that GPUs could give to wants of ``types``; remembered by their states."""

    def __init__(
        self,
        types: Sequence[WantType],
        policies: list[Policy],
        *,
        namespace: str,
        budget: Budget,
    ) -> None:
        self._types = types
        self._policies = policies
        self._namespace = namespace
        self._budget = budget
        self._options: dict[tuple[object, ...], list[Option]] = {}

    def of(
        self,
        state: GpuState,
        allowed: Allowed,
        rules: ConstraintRules,
        target: Vector,
        *,
        weights: Callable[[GeometryIndex], Weights],
    ) -> list[Option]:
        """The options of a GPU that may give what is ``allowed``; ``weights`` price slices.

        Raises:
            TooHardError: there are more of them than the budget suffices for.
        """
        if state.blocked or state.whole_held or not any(allowed):
            return [nothing(len(target))]
        if state.gpu.sharing is not None:
            return share_options(state, self._shares(target, allowed, rules), self._budget)
        if state.geometry_index is None:
            return (
                [nothing(len(target))] if state.holdings else whole_options(target, allowed, rules)
            )
        index = state.geometry_index
        if state.gpu.slice_sharing is not None and any(o.shared for o in chain(*allowed)):
            wants = self._shares(target, allowed, rules)
            pricing = Pricing(index.table, self._policies, weights(index))
            return slice_share_options(state, wants, pricing, self._budget)
        key = (
            id(index),
            state.usage,
            state.instances,
            state.idle,
            tuple(allowed),
            target,
            rules.key,
        )
        known = self._options.get(key)
        if known is None:
            pricing = Pricing(index.table, self._policies, weights(index))
            known = self._options[key] = slice_options(
                state.usage,
                state.instances,
                pricing,
                target=target,
                allowed=allowed,
                rules=rules,
                idle=state.idle,
                budget=self._budget,
            )
        return known

    def _shares(self, target: Vector, allowed: Allowed, rules: ConstraintRules) -> SharesWanted:
        return SharesWanted(self._types, target, self._namespace, allowed, rules)
