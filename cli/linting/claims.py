"""Rules for ResourceClaims, ResourceClaimTemplates and DeviceClasses."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from api import config as opaque
from api.errors import InvalidObjectError
from cli.linting.documents import Document, Level, Path, Remark
from cli.linting.fields import entries, mapping, text
from dra.cel.questions import CostlySelectorError
from dra.claims.allocation import MAX_RESULTS
from dra.claims.classes import GPU_CLASS, names_driver
from dra.gpu.names import DEFAULT_DRIVER

ANY_SLICE = "mig.dra.dev"
_PROFILE_CLASS = re.compile(r"mig-(\d+)g\.(\d+)gb(\.[a-z]+)*")
_MEMORY_CLASS = re.compile(r"mig-min-\d+gb")
_ALMOST = re.compile(r"mig[-_.]?(\d+)g[-_.]?(\d+)gb(.*)", re.IGNORECASE)
_COMPUTE_SLICES = 7
"""Compute slices of every GPU with MIG but the A30, which has 4."""

CheckSelector = Callable[[str], str]
"""Fault of a CEL expression; empty when it compiles, or cannot be checked here."""

SelectsOthers = Callable[[tuple[str, ...]], bool]
"""True if all expressions select a device of another driver; False where one does not compile.

Raises:
    CostlySelectorError: to find that out takes more than selectors may have.
"""


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
        yield from _selectors(document, (*path, "selectors"), body, check)
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


def check_class(
    document: Document, check: CheckSelector, selects_others: SelectsOthers
) -> Iterator[Remark]:
    """A DeviceClass: its selectors and its configuration."""
    spec = mapping(document.obj, "spec")
    at = ("spec", "selectors")
    yield from _selectors(document, at, spec, check)
    texts = [text(mapping(s, "cel"), "expression") for _, s in entries(spec, "selectors")]
    if message := _others_remark(tuple(texts), selects_others):
        yield document.remark(Level.WARNING, at, message)
    for index, entry in entries(spec, "config"):
        yield from check_config(document, ("spec", "config", index), entry)


def _others_remark(texts: tuple[str, ...], selects_others: SelectsOthers) -> str:
    if not any(names_driver(text, DEFAULT_DRIVER) for text in texts):
        return ""
    try:
        if not selects_others(texts):
            return ""
    except CostlySelectorError as error:
        return (
            "it cannot be found out whether it selects devices of other drivers too, and so this "
            f"driver leaves its claims alone: {error}; begin its selector with device.driver == "
            f"'{DEFAULT_DRIVER}' &&, or write it simpler"
        )
    return (
        "it selects devices of other drivers too: kube-scheduler serves its claims, and this "
        f"driver leaves them alone; have it select device.driver == '{DEFAULT_DRIVER}' alone"
    )


def check_config(document: Document, path: Path, entry: dict[str, Any]) -> Iterator[Remark]:
    """An opaque configuration, if it is for this driver."""
    if text(mapping(entry, "opaque"), "driver") != DEFAULT_DRIVER:
        return
    try:
        parameters = mapping(entry, "opaque").get("parameters")
        opaque.decode_share(parameters, of_class=document.kind == "DeviceClass")
    except InvalidObjectError as error:
        where: Path = (*path, "opaque", "parameters")
        fields = tuple(part for part in error.path.split(".") if part)
        yield document.remark(Level.ERROR, (*where, *fields), str(error))


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
    elif name not in classes and (problem := _bad_class(name)):
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


def _bad_class(name: str) -> str:
    """Fault of the name of a class, if it was meant to be one of ours."""
    if name in (ANY_SLICE, GPU_CLASS) or _PROFILE_CLASS.fullmatch(name):
        return ""
    if _MEMORY_CLASS.fullmatch(name):
        return ""
    almost = _ALMOST.fullmatch(name)
    if almost is None:
        return ""
    rest = almost[3].replace("+", ".").replace("-", ".").replace("_", ".").lower()
    return f"no profile has class {name!r}; did you mean 'mig-{almost[1]}g.{almost[2]}gb{rest}'?"


def _selectors(
    document: Document, path: Path, body: dict[str, Any], check: CheckSelector
) -> Iterator[Remark]:
    for index, selector in entries(body, "selectors"):
        expression = text(mapping(selector, "cel"), "expression")
        problem = check(expression) if expression else ""
        if problem:
            where = (*path, index, "cel", "expression")
            yield document.remark(Level.ERROR, where, f"the expression does not compile: {problem}")


def _together(spec: ClaimSpec) -> Iterator[Remark]:
    """Requests that cannot be served by one GPU although a constraint wants that."""
    asked: dict[str, tuple[int, str]] = {}
    total = 0
    for _, request in entries(spec.devices, "requests"):
        body = mapping(request, "exactly")
        count = body.get("count", 1) if isinstance(body.get("count", 1), int) else 1
        total += count
        found = _PROFILE_CLASS.fullmatch(text(body, "deviceClassName"))
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
