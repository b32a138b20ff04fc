"""A virtual device as CEL sees it, and how an expression looks at it (KEP-4381)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dra.cel.opaque import quantity, semver
from dra.cel.questions import GpuIdentity
from dra.gpu.devices import INDEX, PARENT, PCI_BUS_ID, PCIE_ROOT

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

    ``per_gpu``: its result may differ between GPUs of one kind. ``domains`` are those that it looks
    up and that Kubernetes answers with an empty map where a device lacks them; a domain that the
    expression tests with ``in`` is looked up only where it exists, and is left out.
    """

    per_gpu: bool
    domains: frozenset[str]

    @classmethod
    def of(cls, expression: str) -> View:
        """The view of ``expression``, by its text; if that cannot be read, of everything."""
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
