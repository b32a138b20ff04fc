"""Constraints of claims, and the GPUs of one node that they leave."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from dra.allocator.fleet.gpustate import GpuState
from dra.allocator.scoring.geometry_index import GpuId
from dra.allocator.search.constraint_values import (
    UNCONSTRAINED,
    ConstraintRules,
    ConstraintValue,
    Members,
)
from dra.cel.kinds.offers import Offer
from dra.claims.requests.wants import Constraint
from dra.gpu.devices import PCIE_ROOT, gpu_attributes, slice_attributes
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
        self.allowed: list[Allowed] = [
            [
                tuple(o for o in group if self._has_all(state, o, kind.constraints))
                for kind, group in zip(types, offers, strict=True)
            ]
            for state, offers in zip(states, allowed, strict=True)
        ]
        """Per GPU, the offers that have all attributes that are compared."""
        self._homes = [self._homes_of(c) for c in self._constraints]
        self._ranks = [{v: n for n, v in enumerate(homes)} for homes in self._homes]
        self.members: Members = {
            number: tuple(i for i, kind in enumerate(types) if constraint in kind.constraints)
            for number, constraint in enumerate(self._constraints)
            if not constraint.distinct
        }
        """By constraint that wants the same value, the types of want that it covers."""

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

    def _has_all(self, state: GpuState, offer: Offer, constraints: Iterable[Constraint]) -> bool:
        return all(self._value(state, offer, c) is not None for c in constraints)

    def _value(self, state: GpuState, offer: Offer, constraint: Constraint) -> object:
        """The value of a constrained attribute, None where the device has none."""
        key = (state.id, offer, constraint)
        if key not in self._values:
            self._values[key] = self._read(state, offer, constraint.attribute)
        return self._values[key]

    def _read(self, state: GpuState, offer: Offer, attribute: str) -> object:
        if attribute == PCIE_ROOT:
            return state.gpu.pcie_root or None
        if offer.profile is None:
            attributes = gpu_attributes(state.gpu, state.inventory)
        else:
            sharing = state.gpu.slice_sharing if offer.shared else None
            attributes = slice_attributes(
                state.gpu, offer.profile, state.inventory, sharing=sharing
            )
        field = attributes.get(attribute.removeprefix(f"{self._driver}/"))
        return None if field is None else next(iter(field.items()))
