"""Requests of claims: what they ask for by classes and configuration, and what cannot be had."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from api.config import PlacementConfig, decode_placement, decode_share
from api.errors import InvalidObjectError
from dra.claims.allocation import MAX_RESULTS
from dra.claims.claims import ALL, Claim, Request
from dra.claims.classes import (
    GPU_CLASS,
    SHARE_CLASS,
    SLICE_SHARE_CLASS,
    DeviceClass,
    looks_ours,
)
from dra.claims.reasons import Obstacle, Reason
from dra.claims.sharing import (
    OFFERED,
    Setting,
    Sharing,
    misplaced,
    misplaced_share,
    not_shared,
    settings_of,
    sharing_of,
    states_share,
    too_many,
)
from dra.common.quantity import QuantityError, parse_quantity
from dra.common.resources import at
from dra.gpu.shares import NO_ASK, Ask


def find_unsupported(claim: Claim) -> Obstacle | None:
    """The first thing in the spec of ``claim`` that this driver cannot do; None when there is none.

    The classes that it names are not looked at.
    """
    problem = _bad_requests(claim) or _bad_constraints(claim) or _bad_view(claim)
    return Obstacle(Reason.UNSUPPORTED, problem) if problem else None


def constrained_attribute(constraint: Mapping[str, Any]) -> str:
    """The attribute that a constraint is about, empty for one of a kind that is not known."""
    return constraint.get("matchAttribute") or constraint.get("distinctAttribute") or ""


def _bad_requests(claim: Claim) -> str:
    for request in claim.requests:
        if request.unsupported:
            return f"request {request.name!r}: {request.unsupported}"
    devices = sum(min(1 if c.mode == ALL else c.count for c in r.choices) for r in claim.requests)
    if devices > MAX_RESULTS:
        return f"it asks for {devices} devices, a claim holds at most {MAX_RESULTS}"
    return ""


def _bad_constraints(claim: Claim) -> str:
    for number, constraint in enumerate(claim.constraints):
        if not constrained_attribute(constraint):
            kind = next((k for k in constraint if k != "requests"), "unknown")
            return (
                f"constraints[{number}]: {kind} is not supported; "
                "use matchAttribute or distinctAttribute"
            )
    return ""


def _bad_view(claim: Claim) -> str:
    """Fault of a claim with ``adminAccess``, in words; empty when all is well."""
    looks = [r.name for r in claim.requests if any(c.admin_access for c in r.choices)]
    others = [r.name for r in claim.requests if r.name not in looks]
    if looks and others:
        return (
            f"request {looks[0]!r} has adminAccess and request {others[0]!r} has not: put what "
            "looks at devices and what holds them into separate claims"
        )
    if looks and claim.constraints:
        return "constraints are not supported together with adminAccess; select by CEL instead"
    return ""


_MIB = 2**20


def ask_of(request: Request, configured: Ask, driver: str) -> Ask:
    """Limits that ``request`` states: a capacity goes before what is ``configured``.

    Amounts are rounded up to whole MiB and whole hundredths of the cores, as kube-scheduler rounds
    them by the request policy of such devices.
    """
    memory, cores = _amount(request, "memory", driver), _amount(request, "cores", driver)
    if memory is None and cores is None:
        return configured
    return replace(
        configured,
        memory_mib=configured.memory_mib if memory is None else -(-memory // _MIB),
        cores=configured.cores if cores is None else cores,
    )


def _amount(request: Request, capacity: str, driver: str) -> int | None:
    """A capacity that is asked for, rounded up; None where it is not, or is no quantity."""
    for name, quantity in request.capacity:
        if name in (capacity, f"{driver}/{capacity}"):
            try:
                return -int(-parse_quantity(quantity) // 1)
            except QuantityError:
                return None
    return None


class _Entry(NamedTuple):
    """Fields that one configuration sets, for some requests or, without any, for all."""

    requests: frozenset[str]
    fields: Mapping[str, Any]
    share: Mapping[str, Any]
    kind: str


@dataclass(frozen=True, slots=True)
class Placements:
    """Configurations of a claim and, by name, of its classes; the later ones stand above."""

    of_classes: Mapping[str, tuple[_Entry, ...]]
    of_claim: tuple[_Entry, ...]

    def of(self, request: Request) -> PlacementConfig:
        """Configuration for one exact request of the claim."""
        fields: dict[str, Any] = {}
        for entry in self._entries(request):
            fields |= entry.fields
        return PlacementConfig(**fields)

    def share(self, request: Request) -> Ask:
        """Share that is configured for one exact request of the claim."""
        fields: dict[str, Any] = {}
        for entry in self._entries(request):
            fields |= entry.share
        if not fields:
            return NO_ASK
        anybody = fields.pop("tenants", "") == "any"
        return Ask(**fields, anybody=anybody)

    def kind_of_share(self, request: Request) -> str:
        """Kind of the last configuration that says how large a share is; empty without one."""
        found = ""
        for entry in self._entries(request):
            if Ask(entry.share.get("memory_mib"), entry.share.get("cores")).stated:
                found = entry.kind
        return found

    def _entries(self, request: Request) -> Iterable[_Entry]:
        names = {request.name, request.name.partition("/")[0]}
        return (
            entry
            for entry in (*self.of_classes[request.class_name], *self.of_claim)
            if not entry.requests or not names.isdisjoint(entry.requests)
        )


def read_placements(
    claim: Claim, classes: Mapping[str, DeviceClass], driver: str
) -> Placements | Obstacle:
    """Configurations of ``claim`` and of its classes, all of which are in ``classes``.

    The obstacle is the first configuration for ``driver`` that cannot be understood.
    """
    names = dict.fromkeys(c.class_name for r in claim.requests for c in r.choices)
    try:
        of_classes = {
            name: _decode(
                classes[name].config, f"DeviceClass {name!r} config", driver, of_class=True
            )
            for name in names
        }
        of_claim = _decode(claim.config, "spec.devices.config", driver, of_class=False)
        return Placements(of_classes, of_claim)
    except _BadConfigError as error:
        return Obstacle(Reason.BAD_CONFIG, str(error))


class _BadConfigError(Exception):
    """A configuration cannot be understood; says which and why."""


def _decode(
    entries: Iterable[Mapping[str, Any]], place: str, driver: str, *, of_class: bool
) -> tuple[_Entry, ...]:
    found = []
    for number, entry in enumerate(entries):
        if at(entry, "opaque", "driver") == driver:
            try:
                parameters = entry["opaque"].get("parameters")
                fields = decode_placement(parameters)
                share = decode_share(parameters, of_class=of_class)
            except InvalidObjectError as error:
                raise _BadConfigError(f"{place}[{number}].opaque.parameters: {error}") from error
            requests = frozenset(entry.get("requests") or ())
            found.append(_Entry(requests, fields, share, parameters["kind"]))
    return tuple(found)


_Entries = Sequence[Mapping[str, Any]]


class RequestedSharing:
    """Sharing that the configuration of a claim and of its classes asks for.

    ``of_class`` has the configuration of a class, which is empty if the class is not known.
    """

    def __init__(self, config: _Entries, of_class: Callable[[str], _Entries], driver: str) -> None:
        self._of_claim = settings_of(config, driver)
        self._of_class = of_class
        self._driver = driver
        self._settings: dict[str, tuple[Setting, ...]] = {}

    def of(self, request: Request) -> Sharing:
        """Sharing of one exact request's devices.

        Raises:
            InvalidObjectError: a configuration cannot be understood.
        """
        return sharing_of(self._of(request.class_name), request.name)

    def _of(self, name: str) -> tuple[Setting, ...]:
        """Settings that count for the requests of a class."""
        if name not in self._settings:
            of_class = settings_of(self._of_class(name), self._driver)
            self._settings[name] = (*of_class, *self._of_claim)
        return self._settings[name]

    def by_mps(self, requests: Iterable[Request]) -> dict[str, bool]:
        """True for each request whose devices are shared by MPS; False for all if one is unclear.

        A request of which one choice is counts as one that is.
        """
        requests = tuple(requests)
        classes = {choice.class_name for r in requests for choice in r.choices}
        if not any(_may_be_mps(each) for name in classes for each in self._of(name)):
            return dict.fromkeys((r.name for r in requests), False)
        try:
            return {r.name: any(self.of(choice).by_mps for choice in r.choices) for r in requests}
        except InvalidObjectError:
            return dict.fromkeys((r.name for r in requests), False)

    def strategies(self, requests: Iterable[Request]) -> dict[str, str]:
        """Strategy by the name of each exact request whose devices are to be shared.

        Raises:
            InvalidObjectError: as ``of``.
        """
        choices = (choice for request in requests for choice in request.choices)
        found = {choice.name: self.of(choice).config.strategy for choice in choices}
        return {name: strategy for name, strategy in found.items() if strategy in OFFERED}

    def problem(self, requests: Sequence[Request]) -> str:
        """Fault of the sharing of a claim with these requests; empty if there is none.

        Of a class with a name of its own only the node can tell what it was given.

        Raises:
            InvalidObjectError: as ``of``.
        """
        clients: list[Request] = []
        for choice in (choice for request in requests for choice in request.choices):
            found = self.of(choice)
            if found.by_mps:
                clients.append(choice)
            name = choice.class_name
            device = f"request {choice.name!r} of class {name!r}"
            is_slice = name not in (GPU_CLASS, SHARE_CLASS)
            if not looks_ours(name):
                continue
            if fault := misplaced(found, device, is_slice=is_slice):
                return fault
            kind = states_share(self._of(name), choice.name)
            if kind and name not in (SHARE_CLASS, SLICE_SHARE_CLASS):
                return not_shared(device, is_slice=is_slice)
            if fault := misplaced_share(kind, device, is_slice=is_slice):
                return fault
        if any(choice.mode == ALL for choice in clients):
            return too_many("all that there are")
        most: dict[str, int] = {}
        for choice in clients:
            request = choice.name.partition("/")[0]
            most[request] = max(choice.count, most.get(request, 0))
        count = sum(most.values())
        return too_many(str(count)) if count > 1 else ""


def _may_be_mps(setting: Setting) -> bool:
    try:
        return setting.sharing is not None and setting.sharing.by_mps
    except InvalidObjectError:
        return True


def requested_sharing(
    config: _Entries, classes: Mapping[str, DeviceClass], driver: str
) -> RequestedSharing:
    """The sharing that a claim's ``config`` and ``classes``, by name, ask for."""

    def of_class(name: str) -> _Entries:
        known = classes.get(name)
        return known.config if known is not None else ()

    return RequestedSharing(config, of_class, driver)
