"""Rules for ResourceClaims and ResourceClaimTemplates."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from cli.linting.classes import (
    ANY_SLICE,
    CheckSelector,
    bad_class,
    check_config,
    check_selectors,
)
from cli.linting.documents import Document, Level, Path, Remark
from cli.linting.fields import entries, mapping, text
from dra.claims.allocation import MAX_RESULTS
from dra.claims.claims import Request, read_requests
from dra.claims.classes import PROFILE_CLASS
from dra.gpu.names import DEFAULT_DRIVER

_COMPUTE_SLICES = 7
"""Compute slices of every GPU with MIG but the A30, which has 4."""

_MODES = ("ExactCount", "All")


@dataclass(frozen=True, slots=True)
class ClaimSpec:
    """The ``spec.devices`` of a claim or a template, with its place in the file."""

    document: Document
    at: Path
    devices: dict[str, Any]

    @property
    def requests(self) -> list[str]:
        """The names of its requests."""
        return [text(r, "name") for _, r in entries(self.devices, "requests")]

    @property
    def understood(self) -> tuple[Request, ...]:
        """The requests that can be understood; mistakes in others are told elsewhere."""
        found: list[Request] = []
        for _, entry in entries(self.devices, "requests"):
            try:
                found += read_requests([entry])
            except (KeyError, TypeError, AttributeError):
                continue
        return tuple(found)


def claim_spec(document: Document) -> ClaimSpec | None:
    """The claim in a document, if it is one."""
    if document.kind == "ResourceClaim":
        at: Path = ("spec", "devices")
    elif document.kind == "ResourceClaimTemplate":
        at = ("spec", "spec", "devices")
    else:
        return None
    return ClaimSpec(document, at, mapping(document.obj, *(str(k) for k in at)))


def check_claim(
    spec: ClaimSpec, classes: dict[str, Document], check: CheckSelector
) -> Iterator[Remark]:
    """Findings about one claim."""
    document, at = spec.document, spec.at
    if not spec.requests:
        yield document.remark(Level.ERROR, at, "it asks for no device: requests is empty")
    for name in {n for n in spec.requests if spec.requests.count(n) > 1}:
        yield document.remark(Level.ERROR, (*at, "requests"), f"two requests are called {name!r}")
    yield from _forms(spec)
    for path, body in _bodies(spec):
        yield from _check_body(document, path, body, classes)
        yield from check_selectors(document, (*path, "selectors"), body, check)
    yield from _together(spec)
    known = {*spec.requests, *_subrequests(spec)}
    for index, entry in entries(spec.devices, "config"):
        path = (*at, "config", index)
        yield from check_config(document, path, entry)
        yield from _unknown_requests(document, path, entry, known)
    for index, entry in entries(spec.devices, "constraints"):
        path = (*at, "constraints", index)
        yield from _unknown_requests(document, path, entry, known)
        if not (text(entry, "matchAttribute") or text(entry, "distinctAttribute")):
            yield document.remark(
                Level.ERROR, path, "it is not supported; use matchAttribute or distinctAttribute"
            )
        for field in ("matchAttribute", "distinctAttribute"):
            if (attribute := text(entry, field)) and "/" not in attribute:
                message = f"{attribute!r} lacks its domain; write {DEFAULT_DRIVER}/{attribute}"
                yield document.remark(Level.ERROR, (*path, field), message)


def _forms(spec: ClaimSpec) -> Iterator[Remark]:
    """Requests that say neither ``exactly`` nor ``firstAvailable``, or both."""
    for index, request in entries(spec.devices, "requests"):
        given = [form for form in ("exactly", "firstAvailable") if request.get(form)]
        if len(given) == 1:
            continue
        path: Path = (*spec.at, "requests", index)
        message = "exactly one of exactly and firstAvailable has to be given"
        outside = sorted({"deviceClassName", "selectors", "count", "allocationMode"} & set(request))
        if outside and not given:
            message += (
                f"; {', '.join(outside)} belong{'s' * (len(outside) == 1)} below exactly in "
                "resource.k8s.io/v1 (beside name it was in v1beta1)"
            )
        yield spec.document.remark(Level.ERROR, path, message)


def _bodies(spec: ClaimSpec) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Requests: each ``exactly``, and each alternative of ``firstAvailable``."""
    for index, request in entries(spec.devices, "requests"):
        path = (*spec.at, "requests", index)
        if isinstance(request.get("exactly"), dict):
            yield (*path, "exactly"), request["exactly"]
        for rank, alternative in entries(request, "firstAvailable"):
            yield (*path, "firstAvailable", rank), alternative


def _subrequests(spec: ClaimSpec) -> set[str]:
    return {
        f"{text(request, 'name')}/{text(alternative, 'name')}"
        for _, request in entries(spec.devices, "requests")
        for _, alternative in entries(request, "firstAvailable")
    }


def _check_body(
    document: Document, path: Path, body: dict[str, Any], classes: dict[str, Document]
) -> Iterator[Remark]:
    name = text(body, "deviceClassName")
    at = (*path, "deviceClassName")
    if not name:
        yield document.remark(Level.ERROR, path, "deviceClassName is missing")
    elif name not in classes and (problem := bad_class(name)):
        yield document.remark(Level.ERROR, at, problem)
    if body.get("adminAccess") and name.startswith("mig"):
        yield document.remark(
            Level.ERROR,
            (*path, "adminAccess"),
            "it looks at whole GPUs, through which slices are seen; use class gpu.dra.dev",
        )
    mode = text(body, "allocationMode")
    if mode and mode not in _MODES:
        message = f"{mode!r} is not allowed; allowed are: {', '.join(_MODES)}"
        yield document.remark(Level.ERROR, (*path, "allocationMode"), message)
    if mode == "All" and name == ANY_SLICE:
        yield document.remark(
            Level.ERROR,
            (*path, "allocationMode"),
            f"All of class {ANY_SLICE} are slices that overlap: they cannot all exist at once; "
            "ask for one profile (mig-1g.5gb), for whole GPUs (gpu.dra.dev), or for a count",
        )
    count = body.get("count", 1)
    if isinstance(count, int) and count > MAX_RESULTS:
        yield document.remark(
            Level.ERROR, (*path, "count"), f"a claim holds at most {MAX_RESULTS} devices"
        )


def _together(spec: ClaimSpec) -> Iterator[Remark]:
    """Requests that cannot be served by one GPU although a constraint wants that."""
    asked: dict[str, tuple[int, str]] = {}
    total = 0
    for _, request in entries(spec.devices, "requests"):
        body = mapping(request, "exactly")
        count = body.get("count", 1) if isinstance(body.get("count", 1), int) else 1
        total += count
        found = PROFILE_CLASS.fullmatch(text(body, "deviceClassName"))
        if found:
            asked[text(request, "name")] = (int(found[1]) * count, text(body, "deviceClassName"))
    if total > MAX_RESULTS:
        message = f"it asks for {total} devices, a claim holds at most {MAX_RESULTS}"
        yield spec.document.remark(Level.ERROR, (*spec.at, "requests"), message)
    for index, constraint in entries(spec.devices, "constraints"):
        if text(constraint, "matchAttribute").rpartition("/")[2] != "parentUUID":
            continue
        bound = constraint.get("requests") or list(asked)
        compute = sum(asked[name][0] for name in bound if name in asked)
        if compute > _COMPUTE_SLICES:
            yield spec.document.remark(
                Level.ERROR,
                (*spec.at, "constraints", index),
                f"all on one GPU would take {compute} compute slices, a GPU has {_COMPUTE_SLICES}",
            )


def _unknown_requests(
    document: Document, path: Path, entry: dict[str, Any], known: set[str]
) -> Iterator[Remark]:
    named = entry.get("requests")
    for index, name in enumerate(named if isinstance(named, list) else ()):
        if name not in known:
            have = ", ".join(sorted(known)) or "none"
            where = (*path, "requests", index)
            message = f"there is no request {name!r}; there are: {have}"
            yield document.remark(Level.ERROR, where, message)
