"""A virtual device as CEL sees it, and how an expression looks at it (KEP-4381)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from dra.cel.questions import GpuIdentity
from dra.common.quantity import parse_quantity
from dra.gpu.devices import INDEX, PARENT, PCI_BUS_ID, PCIE_ROOT

_NUMBER = r"(?:0|[1-9]\d*)"
_IDENTIFIER = r"(?:0|[1-9]\d*|\d*[A-Za-z-][0-9A-Za-z-]*)"
_FORM = re.compile(
    rf"(?P<major>{_NUMBER})\.(?P<minor>{_NUMBER})\.(?P<patch>{_NUMBER})"
    rf"(?:-(?P<pre>{_IDENTIFIER}(?:\.{_IDENTIFIER})*))?"
    r"(?:\+[0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*)?",
    re.ASCII,
)
_PARTS = 3


class SemverError(ValueError):
    """A text that is no semantic version."""


@dataclass(frozen=True, slots=True)
class Semver:
    """A version without its build part, which no comparison depends on."""

    major: int
    minor: int
    patch: int
    pre: str = ""

    def __str__(self) -> str:
        core = f"{self.major}.{self.minor}.{self.patch}"
        return f"{core}-{self.pre}" if self.pre else core

    def order(self) -> tuple[object, ...]:
        """A key whose order is the precedence of semver.org, rule 11."""
        identifiers = tuple(
            (0, int(part), "") if part.isdigit() else (1, 0, part)
            for part in self.pre.split(".")
            if part
        )
        return (self.major, self.minor, self.patch, not self.pre, identifiers)


def parse_semver(text: str, *, normalize: bool = False) -> Semver:
    """The version in ``text``; ``normalize`` admits ``v1.2`` and leading zeros.

    Raises:
        SemverError: the text is no version.
    """
    match = _FORM.fullmatch(_normalized(text) if normalize else text)
    if match is None:
        raise SemverError(f"{text[:64]!r} is no semantic version (such as 12.4.0)")
    return Semver(int(match["major"]), int(match["minor"]), int(match["patch"]), match["pre"] or "")


def _normalized(text: str) -> str:
    text = text.removeprefix("v")
    core = re.split(r"[-+]", text, maxsplit=1)[0]
    parts = [part.lstrip("0") or "0" if part.isdigit() else part for part in core.split(".")]
    padded = parts + ["0"] * (_PARTS - len(parts))
    return ".".join(padded) + text[len(core) :]


QUANTITY = "quantity"
SEMVER = "semver"

Opaque = dict[str, str]


def quantity(text: str) -> Opaque:
    """A quantity as CEL data. Raises QuantityError."""
    return quantity_of(parse_quantity(text))


def quantity_of(number: Fraction) -> Opaque:
    """A number as a quantity in CEL data."""
    return {QUANTITY: str(number)}


def semver(text: str) -> Opaque:
    """A version as CEL data. Raises SemverError."""
    return {SEMVER: str(parse_semver(text))}


_IDENTITY = (PARENT, "uuid", PCI_BUS_ID, PCIE_ROOT, INDEX)
"""Attributes that tell one GPU from another of the same kind."""

_IDENTITY_NAME = re.compile(rf"\b(?:{'|'.join(name.rpartition('/')[2] for name in _IDENTITY)})\b")
_ITERATION = re.compile(
    r"\.\s*(?:exists|exists_one|existsOne|all|map|filter|transform\w+|format)\s*\("
)
"""Operations that reach an attribute without its name, by iterating over all or printing them."""

_LITERAL_INDEX = re.compile(r"""\[\s*\??\s*(?:"([^"\\]*)"|'([^'\\]*)')\s*\]""")
_DOMAIN_TEST = re.compile(
    r"""(?:"([^"\\]*)"|'([^'\\]*)')\s*in\s+device\s*\.\s*(attributes|capacity)"""
)
_FIELD = re.compile(r"device\s*\.\s*(?:attributes|capacity)\s*\.\s*\??\s*(\w+)")


DeviceData = dict[str, Any]
"""The variable ``device``, without domains that the device does not have."""


def device_data(
    driver: str, attributes: Mapping[str, Any], capacity: Mapping[str, Any], *, shared: bool = False
) -> DeviceData:
    """The data of a device with these attributes and capacities, as ``dra.gpu.devices`` has them.

    Names without a domain belong to the driver's own. ``shared``: several claims may have it.
    """
    domains: dict[str, dict[str, Any]] = {driver: {}}
    for name, field in attributes.items():
        domain, plain = _qualified(name, driver)
        domains.setdefault(domain, {})[plain] = _attribute(field)
    capacities: dict[str, dict[str, Any]] = {driver: {}}
    for name, field in capacity.items():
        domain, plain = _qualified(name, driver)
        capacities.setdefault(domain, {})[plain] = quantity(field["value"])
    return {
        "driver": driver,
        "attributes": domains,
        "capacity": capacities,
        "allowMultipleAllocations": shared,
    }


def of_gpu(device: DeviceData, gpu: GpuIdentity) -> DeviceData:
    """``device`` of another GPU of the same kind, with the identity of ``gpu``."""
    driver = device["driver"]
    values = (gpu.uuid, gpu.uuid, gpu.pci_bus_id, gpu.pcie_root, gpu.index)
    domains = dict(device["attributes"])
    for name, value in zip(_IDENTITY, values, strict=True):
        domain, plain = _qualified(name, driver)
        if plain in domains.get(domain, ()):
            domains[domain] = {**domains[domain], plain: value}
    return {**device, "attributes": domains}


@dataclass(frozen=True, slots=True)
class View:
    """Fields of a device that an expression looks at.

    ``per_gpu``: the expression's result may differ between GPUs of one kind. ``domains``: the
    domains that the expression looks up; where a device lacks one, Kubernetes answers with an empty
    map. A domain that the expression tests with ``in`` is not among them.
    """

    per_gpu: bool
    domains: frozenset[str]

    @classmethod
    def of(cls, expression: str) -> View:
        """The view of ``expression``, by its text; ``per_gpu`` if the text leaves that open."""
        named = bool(_IDENTITY_NAME.search(expression))
        per_gpu = named or bool(_ITERATION.search(expression)) or _dynamic_index(expression)
        looked_up = {_either(m) for m in _LITERAL_INDEX.finditer(expression)}
        looked_up |= {m[1] for m in _FIELD.finditer(expression)}
        tested = {_either(m) for m in _DOMAIN_TEST.finditer(expression)}
        return cls(per_gpu, frozenset(looked_up - tested))

    def complete(self, value: Mapping[str, Any]) -> dict[str, Any]:
        """``value`` with an empty map for every domain that the device lacks."""
        empty: dict[str, dict[str, Any]] = {domain: {} for domain in self.domains}
        return {
            **value,
            "attributes": empty | value["attributes"],
            "capacity": empty | value["capacity"],
        }


def _dynamic_index(expression: str) -> bool:
    """True if some ``x[...]`` is indexed by anything but one string literal."""
    for position, character in enumerate(expression):
        if character != "[":
            continue
        before = expression[:position].rstrip()
        indexed = before[-1:].isalnum() or before[-1:] in {"_", ")", "]", '"', "'"}
        is_list = re.search(r"(?:^|\W)in$", before) is not None
        if indexed and not is_list and not _LITERAL_INDEX.match(expression, position):
            return True
    return False


def _qualified(name: str, driver: str) -> tuple[str, str]:
    domain, slash, plain = name.partition("/")
    return (domain, plain) if slash else (driver, name)


def _attribute(field: Mapping[str, Any]) -> Any:
    form, value = next(iter(field.items()))
    return semver(value) if form == "version" else value


def _either(match: re.Match[str]) -> str:
    return match[1] if match[1] is not None else match[2]
