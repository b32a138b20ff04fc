"""Rules for DeviceClasses, ResourceClaims and ResourceClaimTemplates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from api import config as opaque
from api.errors import InvalidObjectError
from cli.linting.documents import Document, Level, Path, Remark, entries, mapping, text
from dra.cel.kinds import Kinds
from dra.cel.questions import CostlySelectorError, SelectorError
from dra.claims.claims import Request, read_requests
from dra.claims.classes import PROFILE_CLASS, names_driver, read_quota
from dra.claims.requests import RequestedSettings
from dra.gpu.names import DEFAULT_DRIVER

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
        """The requests that can be read; the API server refuses the others."""
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

    ``kinds``: evaluates selectors of classes; without it nothing is said about these.
    """

    classes: Mapping[str, Document]
    claims: Mapping[Key, ClaimSpec]
    kinds: Kinds | None

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
    """Findings about a DeviceClass: its quota, its configuration, the drivers that it selects."""
    quota = read_quota(document.obj, DEFAULT_DRIVER)
    if quota is not None and quota.fault:
        message = f"nothing of the class is allocated: {quota.fault}"
        yield document.remark(Level.ERROR, ("metadata", "annotations"), message)
    spec = mapping(document.obj, "spec")
    texts = tuple(text(mapping(s, "cel"), "expression") for _, s in entries(spec, "selectors"))
    if message := _selects_others(texts, known):
        yield document.remark(Level.WARNING, ("spec", "selectors"), message)
    for index, entry in entries(spec, "config"):
        yield from _check_config(document, ("spec", "config", index), entry)


def _selects_others(texts: tuple[str, ...], known: Manifests) -> str:
    if known.kinds is None or not any(names_driver(text, DEFAULT_DRIVER) for text in texts):
        return ""
    try:
        if not known.kinds.selects_others(texts, DEFAULT_DRIVER):
            return ""
    except CostlySelectorError as error:
        return (
            "it cannot be found out whether it selects devices of other drivers too, and so this "
            f"driver leaves its claims alone: {error}; begin its selector with device.driver == "
            f"'{DEFAULT_DRIVER}' &&, or write it simpler"
        )
    except SelectorError:  # it does not compile: the API server refuses it
        return ""
    return (
        "it selects devices of other drivers too: kube-scheduler serves its claims, and this "
        f"driver leaves them alone; have it select device.driver == '{DEFAULT_DRIVER}' alone"
    )


def check_claim(spec: ClaimSpec, known: Manifests) -> Iterator[Remark]:
    """Findings about a claim or template that neither API server nor controller tells at once."""
    yield from _together(spec)
    for index, entry in entries(spec.devices, "config"):
        yield from _check_config(spec.document, (*spec.at, "config", index), entry)
    with suppress(InvalidObjectError):  # told with the configuration itself
        if problem := known.sharing(spec).problem(spec.understood):
            yield spec.document.remark(Level.ERROR, (*spec.at, "config"), problem)


def _together(spec: ClaimSpec) -> Iterator[Remark]:
    """Findings about constraints by which one GPU is to give more slices than any GPU has."""
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


def _opaque(holder: dict[str, Any]) -> Sequence[Mapping[str, Any]]:
    return [entry for _, entry in entries(holder, "config") if mapping(entry, "opaque")]
