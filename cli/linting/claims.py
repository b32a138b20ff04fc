"""Rules for DeviceClasses, ResourceClaims and ResourceClaimTemplates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from api import config as opaque
from api.errors import InvalidObjectError
from cli.linting.documents import Document, Level, Path, Remark, entries, mapping, text
from dra.cel.kinds import Kinds
from dra.cel.questions import CostlySelectorError, SelectorError
from dra.claims.claims import Request, read_claim, read_requests
from dra.claims.classes import PROFILE_CLASS, meant, names_driver, read_quota
from dra.claims.requests import RequestedSettings, find_unsupported
from dra.claims.trimming import is_stub, trim_claim_spec
from dra.gpu.names import DEFAULT_DRIVER

ANY_SLICE = "mig.dra.dev"

MALFORMED = (LookupError, TypeError, ValueError, AttributeError)
"""Exceptions that objects of a wrong form cause; other rules report that form."""

_COMPUTE_SLICES = 7
"""Compute slices of every GPU with MIG but the A30, which has 4."""

_AT: Mapping[str, Path] = {
    "ResourceClaim": ("spec", "devices"),
    "ResourceClaimTemplate": ("spec", "spec", "devices"),
}

Key = tuple[str, tuple[str, str]]
"""Kind, namespace and name of a claim or template."""


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


@dataclass(frozen=True, slots=True)
class Manifests:
    """The objects of all files, which refer to each other.

    ``kinds``: evaluates selectors; without it nothing is said about selectors.
    """

    classes: Mapping[str, Document]
    claims: Mapping[Key, ClaimSpec]
    kinds: Kinds | None

    def fault(self, expression: str) -> str:
        """Fault of a CEL expression; empty if it compiles."""
        try:
            if self.kinds is not None:
                self.kinds.check(expression)
        except SelectorError as error:
            return str(error)
        return ""

    def selects_others(self, expressions: tuple[str, ...]) -> bool:
        """True if all expressions compile and together select a device of another driver.

        Raises:
            CostlySelectorError: to find that out takes more than selectors may have.
        """
        if self.kinds is None or any(map(self.fault, expressions)):
            return False
        return self.kinds.selects_others(expressions, DEFAULT_DRIVER)

    def sharing(self, spec: ClaimSpec) -> RequestedSettings:
        """The sharing that a claim asks for, as far as these files tell."""

        def of_class(name: str) -> Sequence[Mapping[str, Any]]:
            found = self.classes.get(name)
            return _opaque(mapping(found.obj, "spec")) if found is not None else ()

        return RequestedSettings(_opaque(spec.devices), of_class, DEFAULT_DRIVER)


def claim_spec(document: Document) -> ClaimSpec | None:
    """The claim in a document, if it is one."""
    at = _AT.get(document.kind)
    if at is None:
        return None
    return ClaimSpec(document, at, mapping(document.obj, *(str(k) for k in at)))


def check_class(document: Document, known: Manifests) -> Iterator[Remark]:
    """Findings about a DeviceClass: its quota, its selectors and its configuration."""
    quota = read_quota(document.obj, DEFAULT_DRIVER)
    if quota is not None and quota.fault:
        message = f"nothing of the class is allocated: {quota.fault}"
        yield document.remark(Level.ERROR, ("metadata", "annotations"), message)
    spec = mapping(document.obj, "spec")
    at = ("spec", "selectors")
    yield from _check_selectors(document, at, spec, known)
    texts = tuple(text(mapping(s, "cel"), "expression") for _, s in entries(spec, "selectors"))
    if message := _selects_others(texts, known):
        yield document.remark(Level.WARNING, at, message)
    for index, entry in entries(spec, "config"):
        yield from _check_config(document, ("spec", "config", index), entry)


def _selects_others(texts: tuple[str, ...], known: Manifests) -> str:
    if not any(names_driver(text, DEFAULT_DRIVER) for text in texts):
        return ""
    try:
        if not known.selects_others(texts):
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


def check_claim(spec: ClaimSpec, known: Manifests) -> Iterator[Remark]:
    """Findings about a claim or template by each rule below, except what the API server refuses."""
    for rule in (_bodies_of, _together, _config, _sharing, _size):
        yield from rule(spec, known)


def _bodies_of(spec: ClaimSpec, known: Manifests) -> Iterator[Remark]:
    """Faults of each ``exactly``, and of each alternative of ``firstAvailable``."""
    for index, request in entries(spec.devices, "requests"):
        path: Path = (*spec.at, "requests", index)
        bodies: list[tuple[Path, dict[str, Any]]] = []
        if isinstance(request.get("exactly"), dict):
            bodies.append(((*path, "exactly"), request["exactly"]))
        for rank, alternative in entries(request, "firstAvailable"):
            bodies.append(((*path, "firstAvailable", rank), alternative))
        for at, body in bodies:
            for steps, message in _faults(body, known):
                yield spec.document.remark(Level.ERROR, (*at, *steps), message)
            yield from _check_selectors(spec.document, (*at, "selectors"), body, known)


def _faults(body: dict[str, Any], known: Manifests) -> Iterator[tuple[Path, str]]:
    """Faults of a request's body, each with its field."""
    name, mode = text(body, "deviceClassName"), text(body, "allocationMode")
    right = meant(name)
    if name not in known.classes and right not in ("", name):
        yield ("deviceClassName",), f"no profile has class {name!r}; did you mean {right!r}?"
    if body.get("adminAccess") and name.startswith("mig"):
        message = "it looks at whole GPUs, through which slices are seen; use class gpu.dra.dev"
        yield ("adminAccess",), message
    if mode == "All" and name == ANY_SLICE:
        message = (
            f"All of class {ANY_SLICE} are slices that overlap: they cannot all exist at once; "
            "ask for one profile (mig-1g.5gb), for whole GPUs (gpu.dra.dev), or for a count"
        )
        yield ("allocationMode",), message


def _together(spec: ClaimSpec, __: Manifests) -> Iterator[Remark]:
    """Findings about requests that one GPU is to serve by a constraint, and no GPU can."""
    asked: dict[str, int] = {}
    for _, request in entries(spec.devices, "requests"):
        body = mapping(request, "exactly")
        count = body.get("count", 1) if isinstance(body.get("count", 1), int) else 1
        if found := PROFILE_CLASS.fullmatch(text(body, "deviceClassName")):
            asked[text(request, "name")] = int(found[1]) * count
    for index, constraint in entries(spec.devices, "constraints"):
        if text(constraint, "matchAttribute").rpartition("/")[2] != "parentUUID":
            continue
        compute = sum(asked.get(name, 0) for name in constraint.get("requests") or asked)
        if compute > _COMPUTE_SLICES:
            yield spec.document.remark(
                Level.ERROR,
                (*spec.at, "constraints", index),
                f"all on one GPU would take {compute} compute slices, a GPU has {_COMPUTE_SLICES}",
            )


def _config(spec: ClaimSpec, _: Manifests) -> Iterator[Remark]:
    for index, entry in entries(spec.devices, "config"):
        yield from _check_config(spec.document, (*spec.at, "config", index), entry)


def _sharing(spec: ClaimSpec, known: Manifests) -> Iterator[Remark]:
    try:
        problem = known.sharing(spec).problem(spec.understood)
    except InvalidObjectError:  # reported with the configuration itself
        return
    if problem:
        yield spec.document.remark(Level.ERROR, (*spec.at, "config"), problem)


def _size(spec: ClaimSpec, _: Manifests) -> Iterator[Remark]:
    """Finding about more requests, constraints or parameters for this driver than are read."""
    try:
        trimmed = trim_claim_spec({"devices": spec.devices}, DEFAULT_DRIVER)
        if not is_stub(trimmed):
            return
        metadata = {"namespace": "", "name": "", "uid": ""}
        obstacle = find_unsupported(read_claim({"metadata": metadata, "spec": trimmed}))
    except MALFORMED:
        return
    if obstacle is not None:
        yield spec.document.remark(Level.ERROR, spec.at, obstacle.message)


def _check_config(document: Document, path: Path, entry: dict[str, Any]) -> Iterator[Remark]:
    """Finding about a faulty opaque configuration, if it is for this driver."""
    if text(mapping(entry, "opaque"), "driver") != DEFAULT_DRIVER:
        return
    try:
        parameters = mapping(entry, "opaque").get("parameters")
        opaque.decode_named(parameters, of_class=document.kind == "DeviceClass")
    except InvalidObjectError as error:
        fields = tuple(part for part in error.path.split(".") if part)
        where: Path = (*path, "opaque", "parameters", *fields)
        yield document.remark(Level.ERROR, where, str(error))


def _check_selectors(
    document: Document, path: Path, body: dict[str, Any], known: Manifests
) -> Iterator[Remark]:
    """Findings about selectors in ``body`` (at ``path``) that do not compile."""
    for index, selector in entries(body, "selectors"):
        expression = text(mapping(selector, "cel"), "expression")
        problem = known.fault(expression) if expression else ""
        if problem:
            where = (*path, index, "cel", "expression")
            yield document.remark(Level.ERROR, where, f"the expression does not compile: {problem}")


def _opaque(holder: dict[str, Any]) -> Sequence[Mapping[str, Any]]:
    return [entry for _, entry in entries(holder, "config") if mapping(entry, "opaque")]
