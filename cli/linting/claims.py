"""Rules for DeviceClasses, ResourceClaims and ResourceClaimTemplates."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from api import config as opaque
from api.errors import InvalidObjectError
from cli.linting.documents import (
    Document,
    Level,
    Path,
    Remark,
    entries,
    mapping,
    text,
    without_nulls,
)
from cli.linting.nvidia import becomes
from cli.linting.products import PROFILE, known_gpus
from cli.linting.shapes import CLASS, DEVICES, misshapen
from dra.cel.kinds import Kinds
from dra.cel.offers import Expressions
from dra.cel.questions import CostlySelectorError, SelectorError
from dra.claims.claims import Claim, Request, read_requests
from dra.claims.classes import (
    PROFILE_CLASS,
    DeviceClass,
    generated_classes,
    meant_ours,
    names_driver,
    read_class,
    read_quota,
)
from dra.claims.nearmisses import find_near_miss
from dra.claims.reader import Reader
from dra.claims.reasons import Obstacle, Reason
from dra.claims.requests import RequestedSettings, requested_settings
from dra.claims.wants import ClaimWants
from dra.common.resources import DEVICE_CLASSES, RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS
from dra.gpu.inventory import ClaimRef, Inventory

_COMPUTE_SLICES = 7
"""Compute slices of every GPU with MIG but the A30, which has 4."""

_AT = (
    (RESOURCE_CLAIMS, ("spec", "devices")),
    (RESOURCE_CLAIM_TEMPLATES, ("spec", "spec", "devices")),
)
_VERSIONS = re.compile(r"driverVersion|cudaDriverVersion")
"""Attributes of nodes, not of products."""

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
            flat = "deviceClassName" in entry  # as in v1beta1
            with suppress(KeyError):
                found += read_requests([{**entry, "exactly": entry} if flat else entry])
        return tuple(found)

    @property
    def claim(self) -> Claim:
        """The claim as the controller would read it."""
        constraints, config = (tuple(self.devices.get(f) or ()) for f in ("constraints", "config"))
        ref = ClaimRef(*self.document.key, "")
        return Claim(ref, "", self.understood, constraints, config)


@dataclass(frozen=True)
class Manifests:
    """The objects of all files, which refer to each other. ``kinds``: evaluates selectors."""

    classes: dict[str, Document]
    claims: dict[Key, ClaimSpec]
    kinds: Kinds
    driver: str

    def add(self, document: Document) -> Iterator[Remark]:
        """Take a claim, template or class; yields the remark about one of a wrong shape."""
        if (spec := claim_spec(document)) is not None:
            if remark := misshapen(document, spec.at, spec.devices, DEVICES):
                yield remark
            else:
                self.claims[document.kind, document.key] = spec
        elif document.is_a(DEVICE_CLASSES):
            if remark := misshapen(document, (), document.obj, CLASS):
                yield remark
            elif document.name:
                self.classes[document.name] = document

    @cached_property
    def _device_classes(self) -> dict[str, DeviceClass]:
        """Classes of the files, those that the controller would generate, and others' by name."""
        profiles = {p.name for g in self._gpus.gpus if g.geometry for p in g.geometry.profiles}
        made = [
            *generated_classes(self.driver, profiles | self._profiles),
            *(without_nulls(d.obj) for d in self.classes.values()),
        ]
        known = {text(obj["metadata"], "name"): read_class(obj, self.driver) for obj in made}
        asked = (r for spec in self.claims.values() for r in spec.understood)
        named = {choice.class_name for request in asked for choice in request.choices}
        others = {name for name in named - known.keys() if name and not meant_ours(name)}
        return {**known, **{n: DeviceClass(n, False, (), (), "") for n in others}}

    @cached_property
    def _profiles(self) -> set[str]:
        """The profiles that claims and classes name."""
        objects = [s.devices for s in self.claims.values()] + [c.obj for c in self.classes.values()]
        return {found[0].replace("gb.", "gb+") for found in PROFILE.finditer(str(objects))}

    @cached_property
    def _gpus(self) -> Inventory:
        return known_gpus(self.driver, self._profiles)

    @cached_property
    def _reader(self) -> Reader:
        return Reader(self.driver, self.kinds, self._device_classes)

    def read(self, spec: ClaimSpec) -> ClaimWants | Obstacle | None:
        """A claim as the controller would read it: what it wants of this driver, None for others'.

        A class that is not in the files, and not called like one of ours, counts as another's.
        """
        return self._reader.read(spec.claim)

    def unmatched(self, wanted: Expressions) -> str:
        """Reason why selectors select no device of any product; empty if they may."""
        if self.kinds.tells_gpus_apart(wanted) or any(map(_VERSIONS.search, wanted)):
            return ""
        kinds = [self.kinds.of(gpu, self._gpus) for gpu in self._gpus.gpus]
        found = [self.kinds.match_kind(wanted, kind) for kind in kinds]
        if not found or any(match.offers or match.costly for match in found):
            return ""
        products = len({kind.product_name for kind in kinds})
        error = next((f" ({match.error})" for match in found if match.error), "")
        return (
            f"it selects no device of the {products} products that are known here{error}, and "
            "waits unless your GPUs are others: compare kubectl mig profiles"
        )

    def near_miss(self, wanted: Expressions) -> str:
        """Profiles of products that selectors miss by little; empty if none."""
        return find_near_miss(wanted, (g.geometry for g in self._gpus.gpus if g.geometry))

    def sharing(self, spec: ClaimSpec) -> RequestedSettings:
        """The sharing that a claim asks for, as far as these files tell."""
        return requested_settings(spec.claim.config, self._device_classes, self.driver)


def claim_spec(document: Document) -> ClaimSpec | None:
    """The claim in a document, if it is one."""
    at: Path | None = next((path for kind, path in _AT if document.is_a(kind)), None)
    if at is None:
        return None
    return ClaimSpec(document, at, without_nulls(mapping(document.obj, *map(str, at))))


def check_class(document: Document, known: Manifests) -> Iterator[Remark]:
    """Findings about a DeviceClass: its quota, its configuration, the drivers that it selects."""
    quota = read_quota(document.obj, known.driver)
    if quota is not None and quota.fault:
        message = f"nothing of the class is allocated: {quota.fault}"
        yield document.remark(Level.ERROR, ("metadata", "annotations"), message)
    spec = mapping(document.obj, "spec")
    texts = tuple(text(mapping(s, "cel"), "expression") for _, s in entries(spec, "selectors"))
    if message := _selects_others(texts, known):
        yield document.remark(Level.WARNING, ("spec", "selectors"), message)
    for index, entry in entries(spec, "config"):
        yield from _check_config(document, ("spec", "config", index), entry, known.driver)
    yield from becomes(document, known.driver, known.classes)


def _selects_others(texts: tuple[str, ...], known: Manifests) -> str:
    if not any(names_driver(text, known.driver) for text in texts):
        return ""
    try:
        if not known.kinds.selects_others(texts, known.driver):
            return ""
    except CostlySelectorError as error:
        return (
            "it cannot be found out whether it selects devices of other drivers too, and so this "
            f"driver leaves its claims alone: {error}; begin its selector with device.driver == "
            f"'{known.driver}' &&, or write it simpler"
        )
    except SelectorError:  # it does not compile: the API server refuses it
        return ""
    return (
        "it selects devices of other drivers too: kube-scheduler serves its claims, and this "
        f"driver leaves them alone; have it select device.driver == '{known.driver}' alone"
    )


def check_claim(spec: ClaimSpec, known: Manifests) -> Iterator[Remark]:
    """Findings about a claim or template that neither API server nor controller tells at once."""
    document, where = spec.document, (*spec.at, "requests")
    yield from _together(spec)
    faults = [
        remark
        for index, entry in entries(spec.devices, "config")
        for remark in _check_config(document, (*spec.at, "config", index), entry, known.driver)
    ]
    yield from faults
    yield from becomes(document, known.driver, known.classes)
    found = known.read(spec)
    if isinstance(found, Obstacle):
        if found.reason is not Reason.BAD_CONFIG:
            yield document.remark(Level.ERROR, where, found.message)
        elif not faults:  # told with their lines
            yield document.remark(Level.ERROR, (*spec.at, "config"), found.message)
        return
    for index, choices in enumerate(found.choices if found else ()):
        reasons = [known.unmatched(want.expressions) for want in choices]
        missed = (known.near_miss(want.expressions) for want in choices)
        if all(reasons):
            yield document.remark(Level.WARNING, (*where, index), reasons[0])
        elif said := next(filter(None, missed), ""):
            yield document.remark(Level.HINT, (*where, index), said)


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


def _check_config(
    document: Document, path: Path, entry: dict[str, Any], driver: str
) -> Iterator[Remark]:
    """Finding about a faulty opaque configuration, if it is for this driver."""
    if text(mapping(entry, "opaque"), "driver") != driver:
        return
    try:
        parameters = mapping(entry, "opaque").get("parameters")
        opaque.decode_named(parameters, of_class=document.kind == "DeviceClass")
    except InvalidObjectError as error:
        fields = tuple(part for part in error.path.split(".") if part)
        where: Path = (*path, "opaque", "parameters", *fields)
        yield document.remark(Level.ERROR, where, str(error))
