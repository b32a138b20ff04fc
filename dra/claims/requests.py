"""Requests of claims: their capacities and configuration, and what of them is not supported."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from api.config import PlacementConfig
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
    MPS,
    OFFERED,
    Setting,
    Settings,
    Sharing,
    asked_share,
    misplaced,
    misplaced_share,
    not_shared,
    settings_of,
    sharing_of,
    states_share,
    too_many,
)
from dra.common.quantity import QuantityError, parse_quantity
from dra.gpu.shares import Ask

_Entries = Sequence[Mapping[str, Any]]
_MIB = 2**20


def find_unsupported(claim: Claim) -> Obstacle | None:
    """The first thing in the spec of ``claim`` that this driver cannot do; None if there is none.

    The classes that the claim names are not looked at.
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


class RequestedSettings:
    """Configuration for ``driver`` of a claim and of its classes; the claim's own goes first.

    ``of_class`` returns the configuration of a class by name, nothing for an unknown class.
    """

    def __init__(self, config: _Entries, of_class: Callable[[str], _Entries], driver: str) -> None:
        self._of_claim = settings_of(config, driver)
        self._of_class = of_class
        self._driver = driver
        self._settings: dict[str, Settings] = {}

    def fault(self, requests: Iterable[Request]) -> str:
        """The first configuration that cannot be understood, and why; empty if all can."""
        for name in dict.fromkeys(choice.class_name for choice in _choices(requests)):
            of_class = self._of(name)[: -len(self._of_claim) or None]
            if fault := _fault(of_class, f"DeviceClass {name!r} config"):
                return fault
        return _fault(self._of_claim, "spec.devices.config")

    def placement(self, request: Request) -> PlacementConfig:
        """Placement of one exact request's devices."""
        fields: dict[str, Any] = {}
        for each in self._of(request.class_name):
            if each.concerns(request.name):
                fields |= each.read().placement
        return PlacementConfig(**fields)

    def part(self, request: Request) -> str:
        """Kind of the configuration that states the size of a share for ``request``, or empty."""
        return states_share(self._of(request.class_name), request.name)

    def ask(self, request: Request) -> Ask:
        """Limits that one exact request states: a capacity goes before configuration.

        Amounts are rounded up to whole MiB and whole hundredths of the cores, as kube-scheduler
        rounds them by the request policy of such devices.
        """
        configured = asked_share(self._of(request.class_name), request.name)
        memory, cores = (_amount(request, each, self._driver) for each in ("memory", "cores"))
        if memory is None and cores is None:
            return configured
        return replace(
            configured,
            memory_mib=configured.memory_mib if memory is None else -(-memory // _MIB),
            cores=configured.cores if cores is None else cores,
        )

    def sharing(self, request: Request) -> Sharing:
        """Sharing of one exact request's devices.

        Raises:
            InvalidObjectError: a configuration cannot be understood.
        """
        return sharing_of(self._of(request.class_name), request.name)

    def by_mps(self, requests: Iterable[Request]) -> dict[str, bool]:
        """By request, True if its devices are shared by MPS; all False if one cannot be understood.

        A request with alternatives counts as shared if one of them is.
        """
        requests = tuple(requests)
        nothing = dict.fromkeys((r.name for r in requests), False)
        classes = {choice.class_name for choice in _choices(requests)}
        if not any(_may_be_mps(each) for name in classes for each in self._of(name)):
            return nothing
        try:
            return {r.name: any(self.sharing(c).by_mps for c in r.choices) for r in requests}
        except InvalidObjectError:
            return nothing

    def strategies(self, requests: Iterable[Request]) -> dict[str, str]:
        """Strategy by the name of each exact request whose devices are to be shared.

        Raises:
            InvalidObjectError: as ``sharing``.
        """
        found = {choice.name: self.sharing(choice).config.strategy for choice in _choices(requests)}
        return {name: strategy for name, strategy in found.items() if strategy in OFFERED}

    def problem(self, requests: Sequence[Request]) -> str:
        """Fault of the sharing of a claim with these requests; empty if there is none.

        A class that is not named like ours is skipped: only the node can tell which device it gave.

        Raises:
            InvalidObjectError: as ``sharing``.
        """
        clients: list[Request] = []
        for choice in _choices(requests):
            found = self.sharing(choice)
            if found.by_mps:
                clients.append(choice)
            name = choice.class_name
            device = f"request {choice.name!r} of class {name!r}"
            is_slice = name not in (GPU_CLASS, SHARE_CLASS)
            if not looks_ours(name):
                continue
            if fault := misplaced(found, device, is_slice=is_slice):
                return fault
            part = self.part(choice)
            if part and name not in (SHARE_CLASS, SLICE_SHARE_CLASS):
                return not_shared(device, is_slice=is_slice)
            if fault := misplaced_share(part, device, is_slice=is_slice):
                return fault
        if any(choice.mode == ALL for choice in clients):
            return too_many("all that there are")
        most: dict[str, int] = {}
        for choice in clients:
            request = choice.name.partition("/")[0]
            most[request] = max(choice.count, most.get(request, 0))
        count = sum(most.values())
        return too_many(str(count)) if count > 1 else ""

    def _of(self, name: str) -> Settings:
        """Settings that count for the requests of a class."""
        if name not in self._settings:
            of_class = settings_of(self._of_class(name), self._driver, of_class=True)
            self._settings[name] = (*of_class, *self._of_claim)
        return self._settings[name]


def requested_settings(
    config: _Entries, classes: Mapping[str, DeviceClass], driver: str
) -> RequestedSettings:
    """The configuration of a claim and of ``classes``, by name."""

    def of_class(name: str) -> _Entries:
        known = classes.get(name)
        return known.config if known is not None else ()

    return RequestedSettings(config, of_class, driver)


def _choices(requests: Iterable[Request]) -> Iterator[Request]:
    return (choice for request in requests for choice in request.choices)


def _fault(settings: Iterable[Setting], place: str) -> str:
    for each in settings:
        try:
            each.read()
        except InvalidObjectError as error:
            return f"{place}[{each.number}].opaque.parameters: {error}"
    return ""


def _may_be_mps(setting: Setting) -> bool:
    said = setting.said
    if isinstance(said, InvalidObjectError):
        return True
    return said.sharing is not None and said.sharing.strategy == MPS


def _amount(request: Request, capacity: str, driver: str) -> int | None:
    """The amount of a capacity that is asked for, rounded up; None if there is none to be read."""
    for name, quantity in request.capacity:
        if name in (capacity, f"{driver}/{capacity}"):
            try:
                return -int(-parse_quantity(quantity) // 1)
            except QuantityError:
                return None
    return None
