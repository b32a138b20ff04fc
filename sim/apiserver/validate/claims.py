"""Rules of claim specs: requests, constraints, configurations."""

from __future__ import annotations

from dra.common.resources import Obj, at
from sim.apiserver.refusals import names
from sim.apiserver.refusals.causes import Cause, invalid, not_supported, required
from sim.apiserver.validate.devices import (
    check_items,
    check_label,
    check_opaque,
    check_qualified,
    check_selectors,
    refuse_admin_access,
)

REQUESTS = 32
_CONSTRAINTS = 32
CONFIGS = 32
_FIRST_AVAILABLE = 8
_ONE_KIND = "exactly one of `exactly` or `firstAvailable` is required"
_REFERENCE = (
    "must be the name of a request in the claim or the name of a request and a subrequest "
    "separated by '/'"
)


def check_claim_spec(spec: Obj, path: str, *, admin_allowed: bool) -> list[Cause]:
    """Checks the spec of a claim or of a template."""
    devices = spec.get("devices", {})
    requests = devices.get("requests", [])
    known = request_names(devices)
    inside = f"{path}.devices"
    causes: list[Cause] = []
    for index, request in enumerate(requests):
        if at(request, "exactly", "adminAccess") and not admin_allowed:
            causes.append(refuse_admin_access(f"{inside}.requests[{index}].adminAccess"))
            break
    causes += check_items(
        requests, f"{inside}.requests", REQUESTS, _check_request, key=lambda r: r.get("name")
    )
    causes += check_items(
        devices.get("constraints", []),
        f"{inside}.constraints",
        _CONSTRAINTS,
        lambda constraint, at: _check_constraint(constraint, at, known),
    )
    return causes + check_items(
        devices.get("config", []),
        f"{inside}.config",
        CONFIGS,
        lambda config, at: [
            *check_references(config.get("requests", []), f"{at}.requests", known),
            *check_opaque(config, at),
        ],
    )


def request_names(devices: Obj) -> set[str]:
    """Every name by which requests can be referred to: `request`, `request/subrequest`."""
    known = set()
    for request in devices.get("requests", []):
        name = request.get("name", "")
        known.add(name)
        known |= {f"{name}/{sub.get('name', '')}" for sub in request.get("firstAvailable", [])}
    return known


def check_references(references: list[str], path: str, known: set[str]) -> list[Cause]:
    """Checks a list of request names."""
    return check_items(
        references, path, REQUESTS, lambda name, at: check_reference(name, at, known), key=str
    )


def check_reference(name: str, path: str, known: set[str]) -> list[Cause]:
    """Checks the name of a request or of a request's alternative."""
    parts = name.split("/")
    causes: list[Cause] = []
    if len(parts) <= 2:  # noqa: PLR2004 - request and subrequest
        for part in parts:
            causes += check_label(part, path)
    return causes if name in known else [*causes, invalid(path, name, _REFERENCE)]


def _check_request(request: Obj, path: str) -> list[Cause]:
    causes = check_label(request.get("name", ""), f"{path}.name")
    exactly, alternatives = request.get("exactly"), request.get("firstAvailable", [])
    if exactly is None and not alternatives:
        return [*causes, required(path, _ONE_KIND)]
    if exactly is not None and alternatives:
        text = f"{_ONE_KIND}, but multiple fields are set"
        return [*causes, invalid(path, None, text)]
    if exactly is not None:
        return causes + _check_wanted(exactly, f"{path}.exactly")
    return causes + check_items(
        alternatives,
        f"{path}.firstAvailable",
        _FIRST_AVAILABLE,
        lambda sub, at: [*check_label(sub.get("name", ""), f"{at}.name"), *_check_wanted(sub, at)],
        key=lambda sub: sub.get("name"),
    )


def _check_wanted(wanted: Obj, path: str) -> list[Cause]:
    causes: list[Cause] = []
    name = wanted.get("deviceClassName", "")
    if not name:
        causes.append(required(f"{path}.deviceClassName"))
    elif complaint := names.dns_subdomain(name):
        causes.append(invalid(f"{path}.deviceClassName", name, complaint))
    causes += check_selectors(wanted.get("selectors", []), f"{path}.selectors")
    mode, count = wanted.get("allocationMode", ""), wanted.get("count", 0)
    if mode == "All":
        if count:
            text = "must not be specified when allocationMode is 'All'"
            causes.append(invalid(f"{path}.count", count, text))
    elif mode == "ExactCount":
        if count <= 0:
            causes.append(invalid(f"{path}.count", count, "must be greater than zero"))
    else:
        causes.append(not_supported(f"{path}.allocationMode", mode, ("All", "ExactCount")))
    return causes


def _check_constraint(constraint: Obj, path: str, known: set[str]) -> list[Cause]:
    causes = check_references(constraint.get("requests", []), f"{path}.requests", known)
    for field in ("matchAttribute", "distinctAttribute"):
        if name := constraint.get(field):
            causes += check_qualified(name, f"{path}.{field}")
            if "/" not in name:
                text = "a fully qualified name must be a domain and a name separated by a slash"
                causes.append(invalid(f"{path}.{field}", name, text))
            return causes
    text = (
        'exactly one of "matchAttribute" or "distinctAttribute" is required, but multiple fields '
        "are set"
    )
    return [*causes, required(path, text)]
