"""Reader of claims: what they want of this driver, once their classes are understood."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from api.config import GPU_KIND, KIND
from dra.cel.kinds import Kinds
from dra.cel.offers import UnansweredError
from dra.cel.questions import CostlySelectorError, SelectorError, shortened
from dra.claims.claims import ALL, Claim, Request
from dra.claims.classes import DeviceClass, meant_ours, no_such_class
from dra.claims.reasons import Obstacle, Reason
from dra.claims.requests import (
    RequestedSettings,
    constrained_attribute,
    find_unsupported,
    requested_settings,
)
from dra.claims.wants import ClaimWants, Constraint, Want
from dra.common.cache import BoundedCache, json_weight
from dra.common.resources import Obj, at
from dra.gpu.devices import TYPE_MIG_SHARE, TYPE_SHARE
from dra.gpu.inventory import ClaimRef

_PARTS = {KIND: TYPE_MIG_SHARE, GPU_KIND: TYPE_SHARE}
"""By kind of a configuration that states the size of a share, the type of the devices meant."""

_SPECS_BYTES = 16 * 2**20
"""Bound on the distinct claims that are remembered; those made from one template are alike."""


class Reader:
    """Turns claims into wants of ``driver``. ``classes`` may change between calls.

    Not thread-safe.

    A class is ours if its selectors name our driver and select no other driver's devices. Requests
    of other classes may be served by kube-scheduler, and are left to it. If the selectors do not
    compile, or take too much to evaluate, the class is ours if it names us, so that the fault is
    reported; nothing is allocated for it.

    The wants of equal claims are worked out once, as long as the classes stay as they are.
    Exceptions of ``selectors`` other than SelectorError go through, and nothing is remembered then:
    it may not be known yet whether a claim is ours.
    """

    def __init__(self, driver: str, selectors: Kinds, classes: Mapping[str, DeviceClass]) -> None:
        self.driver = driver
        self._selectors = selectors
        self.classes = classes
        self._known: BoundedCache[bytes, ClaimWants | Obstacle | None] = _specs()
        self._known_of: Mapping[str, DeviceClass] = {}

    def read(self, claim: Claim) -> ClaimWants | Obstacle | None:
        """Wants of ``claim``, the obstacle to reading them, or None for other drivers' claims."""
        if self._known_of != self.classes:
            self._known, self._known_of = _specs(), dict(self.classes)
        spec = msgspec.json.encode((claim.requests, claim.constraints, claim.config))
        found = self._known.get(spec, lambda: self._read(claim))
        return found.of(claim) if isinstance(found, ClaimWants) else found

    def concerns(self, claim: Claim) -> bool:
        """True if a claim is for us, even if only to report a fault."""
        return self._ownership(claim) is not None

    def shared_class(self, claim: Claim) -> str:
        """The first class of ``claim`` that selects devices of others besides ours, or empty."""
        named = (self.classes.get(r.class_name) for r in _exact_requests(claim))
        return next((c.name for c in named if c and c.names_us and not self._is_ours(c)), "")

    def missing_class(self, claim: Claim) -> str:
        """The first class of ``claim`` that does not exist, or empty."""
        named = (c.class_name for r in claim.requests for c in r.choices)
        return next((n for n in named if n and n not in self.classes), "")

    def expressions(self, claim: Claim) -> list[tuple[str, ...]]:
        """Expressions to be evaluated for ``claim``, once it is known that it is ours.

        They are the selectors of each request; none for claims that are not ours or that cannot be
        served.
        """
        try:
            if self._ownership(claim) is not True:
                return []
        except UnansweredError:
            return []
        return [self._expressions(choice) for choice in _exact_requests(claim)]

    def _read(self, claim: Claim) -> ClaimWants | Obstacle | None:
        found = self._ownership(claim)
        if found is None or isinstance(found, Obstacle):
            return found
        obstacle = find_unsupported(claim)
        if obstacle is not None:
            return obstacle
        settings = requested_settings(claim.config, self.classes, self.driver)
        if problem := settings.fault(claim.requests) or settings.problem(claim.requests):
            return Obstacle(Reason.BAD_CONFIG, problem)
        choices = tuple(tuple(self._want(r, settings) for r in q.choices) for q in claim.requests)
        obstacle = self._bad_selector(want for alternatives in choices for want in alternatives)
        obstacle = obstacle or self._unjudged(claim)
        if obstacle is not None:
            return obstacle
        return ClaimWants(
            claim=claim,
            choices=choices,
            constraints=tuple(_constraint(claim, c) for c in claim.constraints),
            class_config={
                r.name: self.classes[r.class_name].config for r in _exact_requests(claim)
            },
            sharing=settings.strategies(claim.requests),
        )

    def _bad_selector(self, wants: Iterable[Want]) -> Obstacle | None:
        for want in wants:
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
        return None

    def _unjudged(self, claim: Claim) -> Obstacle | None:
        """Obstacle of a class of which it takes too much to tell if it selects others' devices."""
        for name in dict.fromkeys(r.class_name for r in _exact_requests(claim)):
            try:
                self._selectors.selects_others(self.classes[name].selectors, self.driver)
            except CostlySelectorError as error:
                message = f"DeviceClass {name!r} is left alone, as {unjudged(error, self.driver)}"
                return Obstacle(Reason.COSTLY_SELECTOR, message)
        return None

    def _ownership(self, claim: Claim) -> Obstacle | bool | None:
        """True when every class is ours, None when none is; otherwise the obstacle."""
        names = [c.class_name for r in claim.requests for c in r.choices if c.class_name]
        missing = [n for n in names if n not in self.classes]
        known = {n: self._is_ours(self.classes[n]) for n in names if n in self.classes}
        foreign = [n for n in names if known.get(n) is False]
        ours = [n for n in names if known.get(n)]
        if not ours and (foreign or not any(map(meant_ours, missing))):
            return None
        if missing:
            offered = [c.name for c in self.classes.values() if self._is_ours(c)]
            return Obstacle(Reason.NO_SUCH_CLASS, no_such_class(missing[0], offered))
        if foreign:
            return Obstacle(
                Reason.MIXED,
                f"the claim asks for devices of this driver (class {ours[0]!r}) and of others "
                f"(class {foreign[0]!r}): it is left alone; put them into separate claims",
            )
        return True

    def _is_ours(self, known: DeviceClass) -> bool:
        try:
            return known.names_us and not self._selectors.selects_others(
                known.selectors, self.driver
            )
        except SelectorError:
            return True

    def _want(self, request: Request, settings: RequestedSettings) -> Want:
        placement = settings.placement(request)
        return Want(
            request.name,
            request.class_name,
            expressions=self._expressions(request, settings.part(request)),
            count=request.count,
            policy=placement.policy,
            nodes=placement.nodes,
            everything=request.mode == ALL,
            admin=request.admin_access,
            ask=settings.ask(request),
        )

    def _expressions(self, request: Request, kind_of_share: str = "") -> tuple[str, ...]:
        parts = _PARTS.get(kind_of_share)
        return (
            *((f"device.attributes['{self.driver}'].type == '{parts}'",) if parts else ()),
            *self.classes[request.class_name].selectors,
            *request.selectors,
            *(self._at_least(name, quantity) for name, quantity in request.capacity),
        )

    def _at_least(self, capacity: str, quantity: str) -> str:
        """The selector that a capacity request (KEP-5075) amounts to for whole devices."""
        domain, _, name = capacity.rpartition("/")
        found = f"device.capacity['{domain or self.driver}'].{name}"
        return f"{found}.compareTo(quantity('{quantity}')) >= 0"


def unjudged(error: CostlySelectorError, driver: str) -> str:
    """Words on a class of which it takes too much to tell if it selects others' devices."""
    return (
        f"it cannot be found out whether it selects devices of other drivers too: {error}; begin "
        f"its selector with device.driver == '{driver}' &&, or write it simpler"
    )


def _specs() -> BoundedCache[bytes, ClaimWants | Obstacle | None]:
    return BoundedCache(_SPECS_BYTES, weigh=json_weight)


def _exact_requests(claim: Claim) -> Iterable[Request]:
    return (choice for request in claim.requests for choice in request.choices)


def _constraint(claim: Claim, constraint: Mapping[str, Any]) -> Constraint:
    return Constraint(
        claim.ref.uid,
        constrained_attribute(constraint),
        frozenset(at(constraint, "requests")),
        distinct=not constraint.get("matchAttribute"),
    )


MOST_CHOICES = 512
"""Most requests, or alternatives of them, that are read of all claims of a pod together."""

LOOKS_AND_HOLDS = Obstacle(
    Reason.UNSUPPORTED,
    "a claim with adminAccess and one without cannot be allocated for the same pod; use two pods",
)


TOO_MANY = Obstacle(
    Reason.UNSUPPORTED,
    f"it and the pod's claims before it have more than {MOST_CHOICES} requests and alternatives "
    "together, which is more than this driver reads: ask for fewer, or by count, or put some into "
    "claims of other pods",
)


@dataclass(frozen=True, slots=True, eq=False)
class KnownClaim:
    """A claim with the object that it was read from."""

    claim: Claim
    obj: Obj

    @property
    def node_selector(self) -> dict[str, Any] | None:
        """Node selector of the claim's allocation; None without one, and if any node will do."""
        if self.claim.allocation is None:
            return None
        selector: dict[str, Any] | None = self.obj["status"]["allocation"].get("nodeSelector")
        return selector


class Fault(NamedTuple):
    """A claim that cannot be allocated whatever is free, and why."""

    claim: ClaimRef
    obstacle: Obstacle


class ReadClaims(NamedTuple):
    """Claims as read by ``read_claims``.

    ``wants``: of claims that are to be allocated, those being deleted included. ``pins``: node
    selectors of the allocated claims. ``faults``: claims that cannot be allocated. ``ours``: an
    allocated claim has devices of our driver. ``foreign``: claims for other drivers that are not
    allocated.
    """

    wants: tuple[ClaimWants, ...]
    pins: tuple[dict[str, Any], ...]
    faults: tuple[Fault, ...]
    ours: bool
    foreign: tuple[Claim, ...] = ()

    @property
    def going(self) -> tuple[ClaimRef, ...]:
        """Claims of ``wants`` that are being deleted."""
        return tuple(wants.claim.ref for wants in self.wants if wants.claim.deleting)

    @property
    def mixture(self) -> Fault | None:
        """Fault of a claim that only looks at GPUs, if others hold some; None without one."""
        if len(self.wants) == 1:
            return None
        looks = [wants.claim.ref for wants in self.wants if wants.views]
        if not looks or len(looks) == len(self.wants):
            return None
        return Fault(looks[0], LOOKS_AND_HOLDS)


def read_claims(
    claims: Iterable[KnownClaim], reader: Reader, *, stops_early: bool = False
) -> ReadClaims:
    """The claims of one pod, read.

    ``stops_early``: reading ends with the first claim that is faulty or being deleted. It always
    ends once the claims have more than ``MOST_CHOICES`` of our requests: to read them takes time,
    and to search for their devices more. Exceptions of ``reader`` go through.
    """
    wants: list[ClaimWants] = []
    pins: list[dict[str, Any]] = []
    faults: list[Fault] = []
    foreign: list[Claim] = []
    ours = False
    count = 0
    for known in claims:
        allocation = known.claim.allocation
        if allocation is not None:
            selector = known.node_selector
            pins += [selector] if selector is not None else []
            ours = ours or bool(allocation.of_driver(reader.driver))
            continue
        read = reader.read(known.claim)
        count += 0 if read is None else sum(len(r.choices) for r in known.claim.requests)
        if count > MOST_CHOICES:
            faults.append(Fault(known.claim.ref, TOO_MANY))
            break
        if isinstance(read, Obstacle):
            faults.append(Fault(known.claim.ref, read))
        elif read is None:
            foreign.append(known.claim)
        else:
            wants.append(read)
        if stops_early and (faults or (read is not None and known.claim.deleting)):
            break
    return ReadClaims(tuple(wants), tuple(pins), tuple(faults), ours, tuple(foreign))
