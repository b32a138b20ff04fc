"""Attribute values that constraints of claims compare between devices."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, NamedTuple

from dra.allocator.gpustate import GpuState
from dra.allocator.moves import MoveTable
from dra.allocator.problem import OpenRequest
from dra.cel.kinds import Kinds
from dra.cel.offers import Offer, attributes_of
from dra.claims.wants import ClaimWants, Constraint
from dra.gpu.devices import PCIE_ROOT
from dra.gpu.shares import NO_ASK, Ask

Vector = tuple[int, ...]
"""Number of devices of each type of want."""

Members = Mapping[int, tuple[int, ...]]
"""By constraint, the types of want that it covers."""


class ConstraintValue(NamedTuple):
    """The value that a device has for a constrained attribute.

    ``local``: only devices of one GPU could have it.
    """

    constraint: int
    value: object
    local: bool


ConstraintValues = frozenset[ConstraintValue]
NO_VALUES: ConstraintValues = frozenset()
"""No values."""


@dataclass(frozen=True, slots=True)
class ConstraintRules:
    """The constraints for one GPU, by type of want and offer.

    No two devices may have a value of ``distinct`` in common. All devices that serve the types
    ``members[c]`` must have the same value of constraint ``c`` of ``same``.
    """

    distinct: Mapping[tuple[int, Offer], ConstraintValues]
    same: Mapping[tuple[int, Offer], ConstraintValues]
    members: Members

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for GPUs of one node that are under the same rules."""
        return (tuple(self.distinct.items()), tuple(self.same.items()))

    def values_with(
        self, index: int, offer: Offer, used: ConstraintValues, bound: ConstraintValues
    ) -> tuple[ConstraintValues, ConstraintValues] | None:
        """``used`` and ``bound`` once ``offer`` serves the want of type ``index`` too.

        None where a constraint forbids that.
        """
        new = self.distinct.get((index, offer), NO_VALUES)
        together = joined(bound, self.same.get((index, offer), NO_VALUES))
        if together is None or (new and new & used):
            return None
        return used | new if new else used, together

    def of_gpu(self, number: int) -> ConstraintRules:
        """The same, with values that only one GPU could have told apart from those of others."""

        def own(by_offer: Mapping[Any, ConstraintValues]) -> Mapping[Any, ConstraintValues]:
            return {
                key: frozenset(
                    v._replace(value=(number, v.value)) if v.local else v for v in values
                )
                for key, values in by_offer.items()
            }

        return replace(self, distinct=own(self.distinct), same=own(self.same))


_NOTHING: Mapping[Any, Any] = MappingProxyType({})
UNCONSTRAINED = ConstraintRules(_NOTHING, _NOTHING, _NOTHING)
"""No constraints."""


def joined(bound: ConstraintValues, new: ConstraintValues) -> ConstraintValues | None:
    """Both together; None where a constraint would have two values."""
    if not bound or not new:
        return bound or new
    known = {value.constraint: value for value in bound}
    if any(known.get(value.constraint, value) != value for value in new):
        return None
    return bound | new


def is_complete(value: ConstraintValue, served: Vector, target: Vector, members: Members) -> bool:
    """True when all types of the value's constraint are served: it binds no further device."""
    return all(served[index] == target[index] for index in members[value.constraint])


Allowed = Sequence[tuple[Offer, ...]]
"""Per type of want, the offers of one GPU that would do."""

Homes = Mapping[object, set[str]]
"""By value of an attribute, the UUIDs of GPUs whose devices have it."""


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


def group_wants(
    claims: Sequence[ClaimWants], kinds: Kinds, *, shared: bool
) -> dict[WantType, list[OpenRequest]]:
    """Wants by type, in the order in which they are asked for.

    ``shared``: there are GPUs that several claims may have, or slices of which.
    """
    grouped: dict[WantType, list[OpenRequest]] = {}
    selecting: dict[Hashable, tuple[str, ...]] = {}
    for claim in claims:
        for want in claim.wants:
            bound = tuple(c for c in claim.constraints if c.covers(want))
            # Expressions that select the same, in whatever words, make wants of one type.
            selected = kinds.selected(want.expressions)
            expressions = selecting.setdefault(selected, want.expressions)
            kind = WantType(expressions, bound, want.policy, want.everything)
            if shared and (selected is want.expressions or of_shares(selected)):
                kind = replace(kind, ask=want.ask, uid=claim.claim.ref.uid)
            grouped.setdefault(kind, []).append(OpenRequest(claim.claim.ref, want))
    return grouped


def of_shares(selected: Hashable) -> bool:
    """True if ``selected``, the offers of each kind, has a device that several claims may have."""
    kinds = selected if isinstance(selected, Iterable) else ()
    return any(offer.shared for offers in kinds for offer in offers)


def all_of(gpus: Sequence[tuple[Offer, ...]]) -> int | None:
    """Number of devices that ``gpus`` offer together; None where slices overlap and "all" is void.

    Slices of one profile lie beside each other, those of different profiles do not.
    """
    if any(len(offers) > 1 for offers in gpus):
        return None
    return sum(
        len(offer.profile.placements) if offer.profile else 1 for offers in gpus for offer in offers
    )


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
        self._states = states
        self._driver = driver
        self._values: dict[tuple[str, Offer, int], object] = {}
        self._constraints = list(dict.fromkeys(c for kind in types for c in kind.constraints))
        numbers = {constraint: number for number, constraint in enumerate(self._constraints)}
        self._bound = [[numbers[c] for c in kind.constraints] for kind in types]
        members = {
            number: tuple(i for i, bound in enumerate(self._bound) if number in bound)
            for number in numbers.values()
        }
        self.allowed: list[list[tuple[Offer, ...]]] = [
            [self._needed(state, *each) for each in zip(offers, self._bound, strict=True)]
            for state, offers in zip(states, allowed, strict=True)
        ]
        """Per GPU and type, the offers that have a value for each attribute that is compared.

        An offer is left out if a smaller one with the same values fits wherever it does.
        """
        self.members: Members = {
            number: types
            for number, types in members.items()
            if not self._constraints[number].distinct
        }
        """By constraint that wants the same value on all devices, the types of want that it covers.
        """
        self._keep_common()
        self._homes = [self._homes_of(number, members[number]) for number in members]
        self._ranks = [{v: n for n, v in enumerate(homes)} for homes in self._homes]

    def _keep_common(self) -> None:
        """Drop offers with a value that not all types have that are to have the same."""
        same = {number: types for number, types in self.members.items() if len(types) > 1}
        is_done = not same
        while not is_done:
            is_done = True
            for number, types in same.items():
                common = set.intersection(*({*self._homes_of(number, [i])} for i in types))
                for state, offers in zip(self._states, self.allowed, strict=True):
                    for index in types:
                        kept = tuple(
                            o for o in offers[index] if self._value(state, o, number) in common
                        )
                        is_done = is_done and len(kept) == len(offers[index])
                        offers[index] = kept

    def rules(self, gpu: int) -> ConstraintRules:
        """Constraints on what the GPU with index ``gpu`` gives."""
        if not self._constraints:
            return UNCONSTRAINED
        state = self._states[gpu]
        distinct: dict[tuple[int, Offer], frozenset[ConstraintValue]] = {}
        same: dict[tuple[int, Offer], frozenset[ConstraintValue]] = {}
        for index, (bound, group) in enumerate(zip(self._bound, self.allowed[gpu], strict=True)):
            for offer in group:
                values = [self._shown(state, offer, number) for number in bound]
                distinct[index, offer] = frozenset(
                    v for v in values if self._constraints[v.constraint].distinct
                )
                same[index, offer] = frozenset(values) - distinct[index, offer]
        return ConstraintRules(distinct, same, self.members)

    def _shown(self, state: GpuState, offer: Offer, number: int) -> ConstraintValue:
        """The value of a constraint that an offer has, as a number.

        A value of several GPUs has the same number on each of them. Values that one GPU alone has
        are counted on that GPU, so that GPUs that differ in them alone count as alike.
        """
        value, homes = self._value(state, offer, number), self._homes[number]
        if len(homes[value]) > 1:
            return ConstraintValue(number, self._ranks[number][value], local=False)
        here = [v for v, uuids in homes.items() if uuids == {state.gpu.uuid}]
        return ConstraintValue(number, here.index(value), local=True)

    def _homes_of(self, number: int, types: Iterable[int]) -> Homes:
        """The values of a constraint that offers for ``types`` have, each with its GPUs."""
        homes: dict[object, set[str]] = {}
        for state, offers in zip(self._states, self.allowed, strict=True):
            for index in types:
                for offer in offers[index]:
                    value = self._value(state, offer, number)
                    homes.setdefault(value, set()).add(state.gpu.uuid)
        return homes

    def _needed(
        self, state: GpuState, offers: Sequence[Offer], bound: Sequence[int]
    ) -> tuple[Offer, ...]:
        if len(offers) == 1 and not bound:
            return tuple(offers)
        values = {o: tuple(self._value(state, o, number) for number in bound) for o in offers}
        table = state.table
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

    def _value(self, state: GpuState, offer: Offer, number: int) -> object:
        """The value of a constrained attribute, None where the device has none."""
        key = (state.gpu.uuid, offer, number)
        if key not in self._values:
            attribute = self._constraints[number].attribute
            self._values[key] = self._read(state, offer, attribute)
        return self._values[key]

    def _read(self, state: GpuState, offer: Offer, attribute: str) -> object:
        if attribute == PCIE_ROOT:
            return state.gpu.pcie_root or None
        attributes = attributes_of(offer, state.gpu, state.inventory)
        field = attributes.get(attribute.removeprefix(f"{self._driver}/"))
        return None if field is None else next(iter(field.items()))


def _stands_for(small: Offer, large: Offer, table: MoveTable) -> bool:
    """True if ``small`` fits wherever ``large`` does.

    False for shares of slices: the slice may be there already.
    """
    if small.profile is None or large.profile is None or small.shared or large.shared:
        return False
    return table.covers(small.profile, large.profile)
