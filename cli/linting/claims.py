"""Rules for DeviceClasses, ResourceClaims and ResourceClaimTemplates."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from api import config as opaque
from api.errors import InvalidObjectError
from cli.linting.documents import (
    Document,
    Level,
    Path,
    Remark,
    entries,
    mapping,
    steps,
    text,
)
from cli.linting.nvidia import becomes
from cli.linting.products import PROFILE, known_gpus
from cli.linting.shapes import about_devices
from dra.cel.kinds import Kinds
from dra.cel.offers import Expressions
from dra.cel.questions import CostlySelectorError, SelectorError
from dra.claims.claims import Claim, class_selectors, read_claim
from dra.claims.classes import (
    DeviceClass,
    generated_classes,
    meant_ours,
    names_driver,
    read_class,
    read_quota,
)
from dra.claims.nearmisses import find_near_miss
from dra.claims.reader import Reader, unjudged
from dra.claims.reasons import Obstacle, Reason
from dra.claims.requests import requested_settings
from dra.claims.wants import Want
from dra.common.resources import DEVICE_CLASSES
from dra.gpu.inventory import Inventory

_VERSIONS = re.compile(r"driverVersion|cudaDriverVersion")
"""Attributes of nodes, not of products."""

Key = tuple[str, tuple[str, str]]
"""Kind, namespace and name of a claim or template."""


@dataclass(frozen=True)
class ClaimSpec:
    """A claim or template, with the place of its ``spec.devices`` in the file."""

    document: Document
    at: Path

    @cached_property
    def claim(self) -> Claim:
        """The claim as the controller would read it."""
        namespace, name = self.document.key
        metadata = {"namespace": namespace, "name": name, "uid": ""}
        devices = mapping(self.document.obj, *map(str, self.at))
        return read_claim({"metadata": metadata, "spec": {"devices": devices}})


@dataclass(frozen=True)
class Manifests:
    """The objects of all files, which refer to each other. ``kinds``: evaluates selectors.

    Of several with one name, others refer to the last.
    """

    classes: dict[str, Document]
    claims: dict[Key, ClaimSpec]
    kinds: Kinds
    driver: str

    def add(self, document: Document) -> Iterator[Remark | ClaimSpec | Document]:
        """Take a claim, template or class; yields it, or the remark about one of a wrong shape."""
        for found in about_devices(document):
            if isinstance(found, Remark):
                yield found
            elif not document.is_a(DEVICE_CLASSES):
                self.claims[document.kind, document.key] = spec = ClaimSpec(*found)
                yield spec
            elif document.name:
                self.classes[document.name] = found[0]
                yield found[0]

    @cached_property
    def _profiles(self) -> set[str]:
        """The profiles that claims and classes name."""
        documents = [*(spec.document for spec in self.claims.values()), *self.classes.values()]
        found = PROFILE.finditer(str([each.obj for each in documents]))
        return {each[0].replace("gb.", "gb+") for each in found}

    @cached_property
    def _gpus(self) -> Inventory:
        return known_gpus(self.driver, self._profiles)

    @cached_property
    def reader(self) -> Reader:
        """Reads claims as the controller would.

        Its classes are those of the files and those that the controller would generate. Any other
        one that is not called like ours counts as another driver's.
        """
        profiles = {p.name for g in self._gpus.gpus if g.geometry for p in g.geometry.profiles}
        made = generated_classes(self.driver, profiles | self._profiles)
        made += [each.obj for each in self.classes.values()]
        known = {obj["metadata"]["name"]: read_class(obj, self.driver) for obj in made}
        asked = (r for spec in self.claims.values() for r in spec.claim.requests)
        named = {choice.class_name for request in asked for choice in request.choices}
        others = (name for name in named - known.keys() if not meant_ours(name))
        known |= {name: DeviceClass(name, False, (), (), "") for name in others}
        return Reader(self.driver, self.kinds, known)

    def unmatched(self, document: Document, at: Path, choices: Sequence[Want]) -> Iterator[Remark]:
        """Finding about a request whose selectors select no device of any product, or miss one.

        ``choices``: its alternatives.
        """
        reasons = [self._unmatched(want.expressions) for want in choices]
        if not all(reasons):
            geometries = [gpu.geometry for gpu in self._gpus.gpus if gpu.geometry]
            reasons = [each for want in choices if (each := find_near_miss([want], geometries))]
        if reasons:
            yield document.remark(Level.WARNING, at, reasons[0])

    def _unmatched(self, wanted: Expressions) -> str:
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

    def by_mps(self, spec: ClaimSpec) -> dict[str, bool]:
        """By request of a claim, whether MPS shares its devices, as far as these files tell."""
        settings = requested_settings(spec.claim.config, self.reader.classes, self.driver)
        return settings.by_mps(spec.claim.requests)


def check_class(document: Document, known: Manifests) -> Iterator[Remark]:
    """Findings about a DeviceClass: its quota, its configuration, the drivers that it selects."""
    obj, driver = document.obj, known.driver
    quota = read_quota(obj, driver)
    if quota is not None and quota.fault:
        message = f"nothing of the class is allocated: {quota.fault}"
        yield document.remark(Level.ERROR, ("metadata", "annotations"), message)
    if message := _selects_others(class_selectors(obj), known):
        yield document.remark(Level.WARNING, ("spec", "selectors"), message)
    yield from _check_configs(document, ("spec",), driver)
    yield from becomes(document, driver, known.classes)


def _selects_others(selectors: tuple[str, ...], known: Manifests) -> str:
    if not any(names_driver(each, known.driver) for each in selectors):
        return ""
    try:
        if not known.kinds.selects_others(selectors, known.driver):
            return ""
    except CostlySelectorError as error:
        return f"this driver leaves its claims alone: {unjudged(error, known.driver)}"
    except SelectorError:  # it does not compile: the API server refuses it
        return ""
    return (
        "it selects devices of other drivers too: kube-scheduler serves its claims, and this "
        f"driver leaves them alone; have it select device.driver == '{known.driver}' alone"
    )


def check_claim(spec: ClaimSpec, known: Manifests) -> Iterator[Remark]:
    """Findings about a claim or template that neither API server nor controller tells at once."""
    document, where = spec.document, (*spec.at, "requests")
    faults = [*_check_configs(document, spec.at, known.driver)]
    yield from faults
    yield from becomes(document, known.driver, known.classes)
    found = known.reader.read(spec.claim)
    if isinstance(found, Obstacle):
        if found.reason is not Reason.BAD_CONFIG:
            yield document.remark(Level.ERROR, where, found.message)
        elif not faults:  # told with their lines
            yield document.remark(Level.ERROR, (*spec.at, "config"), found.message)
        return
    for index, choices in enumerate(found.choices if found else ()):
        yield from known.unmatched(document, (*where, index), choices)


def _check_configs(document: Document, at: Path, driver: str) -> Iterator[Remark]:
    """Findings about faulty opaque configurations for this driver below a path."""
    for index, entry in entries(document.obj, *map(str, at), "config"):
        parameters = mapping(entry, "opaque").get("parameters")
        if text(mapping(entry, "opaque"), "driver") != driver:
            continue
        try:
            opaque.decode_named(parameters, of_class=document.kind == DEVICE_CLASSES.kind)
        except InvalidObjectError as error:
            where = (*at, "config", index, "opaque", "parameters", *steps(parameters, error.path))
            yield document.remark(Level.ERROR, where, str(error))
