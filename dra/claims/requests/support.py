"""Support of what a claim asks for, whatever its classes are: the first thing that is not there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dra.claims.allocation import MAX_RESULTS
from dra.claims.claims import ALL, Claim
from dra.claims.reasons import Obstacle, Reason


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
