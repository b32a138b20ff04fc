"""Constraints of claims, and the GPUs of one node that they leave."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from dra.allocator.fleet.gpustate import GpuState
from dra.allocator.scoring.geometry_index import GpuId
from dra.allocator.scoring.moves import MoveTable
from dra.allocator.search.constraint_values import (
    UNCONSTRAINED,
    ConstraintRules,
    ConstraintValue,
    Members,
)
from dra.cel.offers import Offer, attributes_of
from dra.claims.wants import Constraint
from dra.gpu.devices import PCIE_ROOT
from dra.gpu.shares import NO_ASK, Ask

Allowed = Sequence[tuple[Offer, ...]]
"""Per type of want, the offers of one GPU that would do."""

Homes = Mapping[object, set[object]]
"""By value of an attribute, the GPUs whose devices have it."""


@dataclass(frozen=True, slots=True)
class WantType:
    """Wants that the same devices would serve alike: same constraints, same policy.

    Where GPUs or slices are shared, also the same ``ask`` of the same claim ``uid``: no claim has
    two shares of a device.
    """

    expressions: tuple[str, ...]
    constraints: tuple[Constraint, ...]
    policy: str
    everything: bool = False
    ask: Ask = NO_ASK
    uid: str = ""


class Constrained:
    """The GPUs ``states`` of a node under constraints; ``allowed`` is per GPU."""

    def __init__(
        self,
        types: Sequence[WantType],
        states: Sequence[GpuState],
        allowed: Sequence[Allowed],
        *,
        driver: str,
    ) -> None:
        self._types = types
        self._states = states
        self._driver = driver
        self._values: dict[tuple[GpuId, Offer, Constraint], object] = {}
        self._constraints = list(dict.fromkeys(c for kind in types for c in kind.constraints))
        self.allowed: list[list[tuple[Offer, ...]]] = [
            [
                self._needed(state, group, kind.constraints)
                for kind, group in zip(types, offers, strict=True)
            ]
            for state, offers in zip(states, allowed, strict=True)
        ]
        """Per GPU, the offers that have all attributes that are compared.

        Without those in whose place a smaller one with the same values would always fit.
        """
        self._keep_common()
        self._homes = [self._homes_of(c) for c in self._constraints]
        self._ranks = [{v: n for n, v in enumerate(homes)} for homes in self._homes]
        self.members: Members = {
            number: tuple(i for i, kind in enumerate(types) if constraint in kind.constraints)
            for number, constraint in enumerate(self._constraints)
            if not constraint.distinct
        }
        """By constraint that wants the same value, the types of want that it covers."""

    def _keep_common(self) -> None:
        """Drop offers with a value that not all types have that are to have the same."""
        same = [
            c
            for c in self._constraints
            if not c.distinct and sum(c in kind.constraints for kind in self._types) > 1
        ]
        is_done = not same
        while not is_done:
            is_done = True
            for constraint in same:
                common = self._common_values(constraint)
                for state, offers in zip(self._states, self.allowed, strict=True):
                    for index, kind in enumerate(self._types):
                        if constraint not in kind.constraints:
                            continue
                        kept = tuple(
                            o for o in offers[index] if self._value(state, o, constraint) in common
                        )
                        is_done = is_done and len(kept) == len(offers[index])
                        offers[index] = kept

    def _common_values(self, constraint: Constraint) -> AbstractSet[object]:
        values = [
            {
                self._value(state, offer, constraint)
                for state, offers in zip(self._states, self.allowed, strict=True)
                for offer in offers[index]
            }
            for index, kind in enumerate(self._types)
            if constraint in kind.constraints
        ]
        return set.intersection(*values)

    def rules(self, gpu: int) -> ConstraintRules:
        """Constraints on that GPU's part in serving all wants."""
        if not self._constraints:
            return UNCONSTRAINED
        state = self._states[gpu]
        distinct: dict[tuple[int, Offer], frozenset[ConstraintValue]] = {}
        same: dict[tuple[int, Offer], frozenset[ConstraintValue]] = {}
        for index, (kind, group) in enumerate(zip(self._types, self.allowed[gpu], strict=True)):
            for offer in group:
                values = list(self._constraint_values(state, offer, kind))
                distinct[index, offer] = frozenset(
                    v for v in values if self._constraints[v.constraint].distinct
                )
                same[index, offer] = frozenset(values) - distinct[index, offer]
        return ConstraintRules(distinct, same, self.members)

    def _constraint_values(
        self, state: GpuState, offer: Offer, kind: WantType
    ) -> Iterator[ConstraintValue]:
        for number, constraint in enumerate(self._constraints):
            if constraint in kind.constraints:
                value = self._value(state, offer, constraint)
                local = len(self._homes[number][value]) == 1
                # Numbered, so that GPUs have equal ones that have the same in common with others.
                shown = self._rank(state, number, value) if local else self._ranks[number][value]
                yield ConstraintValue(number, shown, local)

    def _rank(self, state: GpuState, number: int, value: object) -> int:
        here = [v for v, homes in self._homes[number].items() if homes == {state.id}]
        return here.index(value)

    def _homes_of(self, constraint: Constraint) -> Homes:
        homes: dict[object, set[object]] = {}
        for state, offers in zip(self._states, self.allowed, strict=True):
            for kind, group in zip(self._types, offers, strict=True):
                if constraint in kind.constraints:
                    for offer in group:
                        homes.setdefault(self._value(state, offer, constraint), set()).add(state.id)
        return homes

    def _needed(
        self, state: GpuState, offers: Sequence[Offer], constraints: Sequence[Constraint]
    ) -> tuple[Offer, ...]:
        if len(offers) == 1 and not constraints:
            return tuple(offers)
        values = {o: tuple(self._value(state, o, c) for c in constraints) for o in offers}
        table = state.geometry_index.table if state.geometry_index is not None else None
        has_all = [offer for offer in offers if None not in values[offer]]
        if table is None or len(has_all) == 1:
            return tuple(has_all)
        return tuple(
            offer
            for offer in has_all
            if not any(
                other.size < offer.size
                and values[other] == values[offer]
                and _stands_for(other, offer, table)
                for other in has_all
            )
        )

    def _value(self, state: GpuState, offer: Offer, constraint: Constraint) -> object:
        """The value of a constrained attribute, None where the device has none."""
        key = (state.id, offer, constraint)
        if key not in self._values:
            self._values[key] = self._read(state, offer, constraint.attribute)
        return self._values[key]

    def _read(self, state: GpuState, offer: Offer, attribute: str) -> object:
        if attribute == PCIE_ROOT:
            return state.gpu.pcie_root or None
        attributes = attributes_of(offer, state.gpu, state.inventory)
        field = attributes.get(attribute.removeprefix(f"{self._driver}/"))
        return None if field is None else next(iter(field.items()))


def _stands_for(small: Offer, large: Offer, table: MoveTable) -> bool:
    """True of slices that claims have alone: one that is shared may be there already."""
    if small.profile is None or large.profile is None or small.shared or large.shared:
        return False
    return table.covers(small.profile, large.profile)
