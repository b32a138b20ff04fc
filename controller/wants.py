"""What a claim wants of us, once its classes and configurations are understood."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from api import config as opaque
from api.errors import InvalidObjectError
from controller.cel import SelectorError, Selectors
from controller.classes import DeviceClass, looks_ours
from controller.reasons import Obstacle, Reason
from dra.allocation import MAX_RESULTS, allocation_config
from dra.claims import Claim, Request
from dra.inventory import ClaimRef

DEFAULT_POLICY = "sws"


@dataclass(frozen=True, slots=True)
class Want:
    """``count`` devices that all ``expressions`` select, for one request of a claim."""

    claim: ClaimRef
    request: str
    class_name: str
    expressions: tuple[str, ...]
    count: int = 1


@dataclass(frozen=True, slots=True)
class SameAttribute:
    """All devices of some requests of a claim have the same value of an attribute.

    ``attribute`` is qualified (``mig.dra.dev/parentUUID``); no requests means all of the claim.
    """

    claim_uid: str
    attribute: str
    requests: frozenset[str] = frozenset()

    def covers(self, want: Want) -> bool:
        """Whether ``want`` is bound by it."""
        return want.claim.uid == self.claim_uid and (
            not self.requests or want.request in self.requests
        )


@dataclass(frozen=True, slots=True, eq=False)
class ClaimWants:
    """A claim that we are to allocate. ``policy`` is "" where no configuration names one."""

    claim: Claim
    wants: tuple[Want, ...]
    constraints: tuple[SameAttribute, ...]
    config: tuple[Mapping[str, Any], ...]
    policy: str = ""


class Reader:
    """Turns claims into wants. ``classes`` is read anew at every call."""

    def __init__(
        self, driver: str, selectors: Selectors, classes: Mapping[str, DeviceClass]
    ) -> None:
        self._driver = driver
        self._selectors = selectors
        self._classes = classes

    def read(
        self, claim: Claim, raw_requests: Iterable[Mapping[str, Any]]
    ) -> ClaimWants | Obstacle | None:
        """What ``claim`` wants, why we cannot tell, or None when it is none of our business.

        ``raw_requests`` are ``spec.devices.requests`` as JSON.
        """
        found = self._ownership([name for r in raw_requests for name in _class_names(r)])
        if found is None or isinstance(found, Obstacle):
            return found
        obstacle = self._unsupported(claim)
        if obstacle is not None:
            return obstacle
        policy = self._policy(claim)
        if isinstance(policy, Obstacle):
            return policy
        wants = tuple(self._want(claim.ref, r) for r in claim.requests)
        for want in wants:
            for expression in want.expressions:
                try:
                    self._selectors.check(expression)
                except SelectorError as error:
                    return Obstacle(
                        Reason.BAD_SELECTOR,
                        f"request {want.request!r} or its class {want.class_name!r}: "
                        f"the CEL expression does not compile: {error}; in: {expression[:200]}",
                    )
        return ClaimWants(
            claim=claim,
            wants=wants,
            constraints=tuple(_constraint(claim, c) for c in claim.constraints),
            config=self._config(claim),
            policy=policy,
        )

    def _ownership(self, names: list[str]) -> Obstacle | bool | None:
        """True when every class is ours, None when none is."""
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
        devices = sum(r.count for r in claim.requests)
        if not problem and devices > MAX_RESULTS:
            problem = f"it asks for {devices} devices, a claim holds at most {MAX_RESULTS}"
        for number, constraint in enumerate(claim.constraints):
            if not problem and not constraint.get("matchAttribute"):
                kind = next((k for k in constraint if k != "requests"), "unknown")
                problem = f"constraints[{number}]: {kind} is not supported yet; use matchAttribute"
        return Obstacle(Reason.UNSUPPORTED, problem) if problem else None

    def _policy(self, claim: Claim) -> str | Obstacle:
        """The policy that the claim's configuration names, else that of its classes."""
        policy = ""
        sources = [
            (f"DeviceClass {name!r} config", self._classes[name].config)
            for name in dict.fromkeys(r.class_name for r in claim.requests)
        ]
        for where, entries in [*sources, ("spec.devices.config", claim.config)]:
            for number, entry in enumerate(entries):
                if (entry.get("opaque") or {}).get("driver") != self._driver:
                    continue
                parameters = entry["opaque"].get("parameters")
                try:
                    config = opaque.decode(parameters)
                except InvalidObjectError as error:
                    path = f"{where}[{number}].opaque.parameters"
                    return Obstacle(Reason.BAD_CONFIG, f"{path}: {error}")
                if isinstance(parameters, dict) and "placement" in parameters:
                    policy = config.placement.policy
        return policy

    def _want(self, claim: ClaimRef, request: Request) -> Want:
        expressions = (*self._classes[request.class_name].selectors, *request.selectors)
        return Want(claim, request.name, request.class_name, expressions, request.count)

    def _config(self, claim: Claim) -> tuple[Mapping[str, Any], ...]:
        by_request = {r.name: self._classes[r.class_name].config for r in claim.requests}
        return tuple(allocation_config([*by_request], claim.config, by_request))


def _constraint(claim: Claim, constraint: Mapping[str, Any]) -> SameAttribute:
    requests = frozenset(r.partition("/")[0] for r in constraint.get("requests") or ())
    return SameAttribute(claim.ref.uid, constraint["matchAttribute"], requests)


def _class_names(request: Mapping[str, Any]) -> Iterable[str]:
    for part in [request.get("exactly") or {}, *(request.get("firstAvailable") or ())]:
        if part.get("deviceClassName"):
            yield part["deviceClassName"]
