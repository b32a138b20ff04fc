"""Requests of a claim for this driver, once its classes and configurations are understood."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import msgspec

from api import config as opaque
from api.config import NO_PREFERENCE, NodesConfig, PlacementConfig
from api.errors import InvalidObjectError
from dra.cel.questions import CostlySelectorError, SelectorError, shortened
from dra.claims.allocation import MAX_RESULTS, allocation_config
from dra.claims.claims import ALL, Claim, Request
from dra.claims.classes import DeviceClass, looks_ours
from dra.claims.reasons import Obstacle, Reason
from dra.common.cache import BoundedCache, json_weight
from dra.common.resources import at

_SPECS_BYTES = 16 * 2**20
"""Bound on the distinct claims that are remembered; those made from one template are alike."""


@dataclass(frozen=True, slots=True)
class Want:
    """``count`` devices that all ``expressions`` select, for one request of claims with that spec.

    ``request`` is ``request/subrequest`` where it is one of several alternatives. ``everything``
    asks for all such devices of a node, whatever ``count``. An ``admin`` want looks at devices and
    holds none. ``nodes`` says which node it prefers, ``policy`` what of the nodes preferred.
    """

    request: str
    class_name: str
    expressions: tuple[str, ...]
    count: int = 1
    policy: str = PlacementConfig().policy
    nodes: NodesConfig = NO_PREFERENCE
    everything: bool = False
    admin: bool = False


@dataclass(frozen=True, slots=True)
class Constraint:
    """Attribute that all devices of some requests have in common, or, if ``distinct``, not.

    ``attribute`` is qualified (``mig.dra.dev/parentUUID``); no requests means all of the claim. A
    device without the attribute satisfies neither form (KEP-4381).
    """

    claim_uid: str
    attribute: str
    requests: frozenset[str] = frozenset()
    distinct: bool = False

    def covers(self, want: Want) -> bool:
        """True if it binds ``want`` of its claim; naming a request names its subrequests."""
        return (
            not self.requests
            or want.request in self.requests
            or want.request.partition("/")[0] in self.requests
        )


@dataclass(frozen=True, slots=True, eq=False)
class ClaimWants:
    """A claim that we are to allocate.

    ``choices`` are per request what would serve it, best first. ``class_config`` is the
    configuration of their classes by ``Want.request``.
    """

    claim: Claim
    choices: tuple[tuple[Want, ...], ...]
    constraints: tuple[Constraint, ...]
    class_config: Mapping[str, tuple[Mapping[str, Any], ...]]

    @property
    def wants(self) -> tuple[Want, ...]:
        """The first choice of every request."""
        return tuple(alternatives[0] for alternatives in self.choices)

    @property
    def views(self) -> bool:
        """True if it only looks at devices (``adminAccess``): all its requests do, or none."""
        return any(want.admin for alternatives in self.choices for want in alternatives)

    def of(self, claim: Claim) -> ClaimWants:
        """The same for another claim, whose spec is equal."""
        bound = tuple(replace(c, claim_uid=claim.ref.uid) for c in self.constraints)
        return ClaimWants(claim, self.choices, bound, self.class_config)

    def choosing(self, choice: Iterable[int]) -> ClaimWants:
        """The claim with one alternative, by its rank, for each request."""
        chosen = ((a[rank],) for a, rank in zip(self.choices, choice, strict=True))
        return replace(self, choices=tuple(chosen))

    def config(self, requests: Iterable[str]) -> list[dict[str, Any]]:
        """The configuration to put into an allocation of ``requests`` (``Want.request``)."""
        names = list(dict.fromkeys(requests))
        return allocation_config(names, self.claim.config, self.class_config)


class Checker(Protocol):
    """Checker that tells whether an expression compiles."""

    def check(self, expression: str) -> None:
        """Raise SelectorError unless ``expression`` compiles to a boolean."""


class Reader:
    """Turns claims into wants. ``classes`` may change between calls. Not thread-safe.

    What equal claims want is worked out once, as long as the classes stay as they are. What
    ``selectors`` raises besides SelectorError goes through, and nothing is remembered then.
    """

    def __init__(self, driver: str, selectors: Checker, classes: Mapping[str, DeviceClass]) -> None:
        self._driver = driver
        self._selectors = selectors
        self._classes = classes
        self._known: BoundedCache[bytes, ClaimWants | Obstacle | None] = _specs()
        self._known_of: Mapping[str, DeviceClass] = {}

    def read(self, claim: Claim) -> ClaimWants | Obstacle | None:
        """Wants of ``claim``, the obstacle to reading them, or None for other drivers' claims."""
        if self._known_of != self._classes:
            self._known, self._known_of = _specs(), dict(self._classes)
        spec = msgspec.json.encode((claim.requests, claim.constraints, claim.config))
        found = self._known.get(spec, lambda: self._read(claim))
        return found.of(claim) if isinstance(found, ClaimWants) else found

    def concerns(self, claim: Claim) -> bool:
        """True if a claim is our business, be it only to say what is wrong."""
        return self._ownership(claim) is not None

    def expressions(self, claim: Claim) -> list[tuple[str, ...]]:
        """Expressions to be evaluated for ``claim``: the selectors of each request.

        Empty for claims that are none of our business or that cannot be served anyhow.
        """
        if self._ownership(claim) is not True:
            return []
        return [self._expressions(choice) for choice in _exact_requests(claim)]

    def _read(self, claim: Claim) -> ClaimWants | Obstacle | None:
        found = self._ownership(claim)
        if found is None or isinstance(found, Obstacle):
            return found
        obstacle = self._unsupported(claim)
        if obstacle is not None:
            return obstacle
        obstacle = self._bad_config(claim)
        if obstacle is not None:
            return obstacle
        choices = tuple(tuple(self._want(claim, r) for r in q.choices) for q in claim.requests)
        for want in (want for alternatives in choices for want in alternatives):
            for expression in want.expressions:
                try:
                    self._selectors.check(expression)
                except CostlySelectorError as error:
                    return Obstacle(
                        Reason.COSTLY_SELECTOR,
                        f"request {want.request!r} or its class {want.class_name!r}: "
                        f"{error} (in {shortened(expression)})",
                    )
                except SelectorError as error:
                    return Obstacle(
                        Reason.BAD_SELECTOR,
                        f"request {want.request!r} or its class {want.class_name!r}: "
                        f"the CEL expression does not compile: {error}; in: {expression[:200]}",
                    )
        return ClaimWants(
            claim=claim,
            choices=choices,
            constraints=tuple(_constraint(claim, c) for c in claim.constraints),
            class_config={
                r.name: self._classes[r.class_name].config for r in _exact_requests(claim)
            },
        )

    def _ownership(self, claim: Claim) -> Obstacle | bool | None:
        """True when every class is ours, None when none is."""
        names = [c.class_name for r in claim.requests for c in r.choices if c.class_name]
        missing = [n for n in names if n not in self._classes]
        foreign = [n for n in names if n in self._classes and not self._classes[n].ours]
        ours = [n for n in names if n in self._classes and self._classes[n].ours]
        if not ours and (foreign or not any(looks_ours(n) for n in missing)):
            return None
        if missing:
            offered = sorted(c.name for c in self._classes.values() if c.ours)
            return Obstacle(
                Reason.NO_SUCH_CLASS,
                f"DeviceClass {missing[0]!r} does not exist; "
                f"classes of this driver are: {', '.join(offered) or 'none yet'}",
            )
        if foreign:
            return Obstacle(
                Reason.MIXED,
                f"the claim asks for devices of this driver (class {ours[0]!r}) and of others "
                f"(class {foreign[0]!r}): it is left alone; put them into separate claims",
            )
        return True

    def _unsupported(self, claim: Claim) -> Obstacle | None:
        problem = next(
            (f"request {r.name!r}: {r.unsupported}" for r in claim.requests if r.unsupported), ""
        )
        devices = sum(
            min(1 if c.mode == ALL else c.count for c in r.choices) for r in claim.requests
        )
        if not problem and devices > MAX_RESULTS:
            problem = f"it asks for {devices} devices, a claim holds at most {MAX_RESULTS}"
        for number, constraint in enumerate(claim.constraints):
            if not problem and not _attribute(constraint):
                kind = next((k for k in constraint if k != "requests"), "unknown")
                problem = (
                    f"constraints[{number}]: {kind} is not supported; "
                    "use matchAttribute or distinctAttribute"
                )
        problem = problem or _bad_view(claim)
        return Obstacle(Reason.UNSUPPORTED, problem) if problem else None

    def _bad_config(self, claim: Claim) -> Obstacle | None:
        """The first configuration for us that cannot be understood."""
        names = dict.fromkeys(r.class_name for r in _exact_requests(claim))
        sources = [(f"DeviceClass {name!r} config", self._classes[name].config) for name in names]
        for where, entries in [*sources, ("spec.devices.config", claim.config)]:
            for number, entry in enumerate(entries):
                if at(entry, "opaque", "driver") != self._driver:
                    continue
                try:
                    opaque.decode(entry["opaque"].get("parameters"))
                except InvalidObjectError as error:
                    path = f"{where}[{number}].opaque.parameters"
                    return Obstacle(Reason.BAD_CONFIG, f"{path}: {error}")
        return None

    def _placement(self, claim: Claim, request: Request) -> PlacementConfig:
        """Configuration of a request's class, overlaid with the claim's own."""
        placement = PlacementConfig()
        names = {request.name, request.name.partition("/")[0]}
        for entry in (*self._classes[request.class_name].config, *claim.config):
            ours = at(entry, "opaque", "driver") == self._driver
            if ours and (not entry.get("requests") or not names.isdisjoint(entry["requests"])):
                placement = opaque.overlay(placement, entry["opaque"].get("parameters"))
        return placement

    def _want(self, claim: Claim, request: Request) -> Want:
        placement = self._placement(claim, request)
        return Want(
            request.name,
            request.class_name,
            expressions=self._expressions(request),
            count=request.count,
            policy=placement.policy,
            nodes=placement.nodes,
            everything=request.mode == ALL,
            admin=request.admin_access,
        )

    def _expressions(self, request: Request) -> tuple[str, ...]:
        return (
            *self._classes[request.class_name].selectors,
            *request.selectors,
            *(self._at_least(name, quantity) for name, quantity in request.capacity),
        )

    def _at_least(self, capacity: str, quantity: str) -> str:
        """A capacity request (KEP-5075) as the selector that it amounts to for whole devices."""
        domain, _, name = capacity.rpartition("/")
        found = f"device.capacity['{domain or self._driver}'].{name}"
        return f"{found}.compareTo(quantity('{quantity}')) >= 0"


def _specs() -> BoundedCache[bytes, ClaimWants | Obstacle | None]:
    return BoundedCache(_SPECS_BYTES, weigh=json_weight)


def _exact_requests(claim: Claim) -> Iterable[Request]:
    return (choice for request in claim.requests for choice in request.choices)


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


def _attribute(constraint: Mapping[str, Any]) -> str:
    return constraint.get("matchAttribute") or constraint.get("distinctAttribute") or ""


def _constraint(claim: Claim, constraint: Mapping[str, Any]) -> Constraint:
    return Constraint(
        claim.ref.uid,
        _attribute(constraint),
        frozenset(at(constraint, "requests")),
        distinct=not constraint.get("matchAttribute"),
    )
