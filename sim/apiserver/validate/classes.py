"""Rules of device classes."""

from __future__ import annotations

from dra.common.resources import Obj
from sim.apiserver.refusals import names
from sim.apiserver.refusals.causes import Cause, invalid
from sim.apiserver.validate.claims import CONFIGS
from sim.apiserver.validate.devices import check_items, check_opaque, check_selectors

_QUOTA_PREFIX = "requests."


def check_device_class(spec: Obj) -> list[Cause]:
    """Checks selectors, configurations and the extended resource name."""
    causes = check_selectors(spec.get("selectors", []), "spec.selectors")
    causes += check_items(spec.get("config", []), "spec.config", CONFIGS, check_opaque)
    name = spec.get("extendedResourceName")
    if name is not None and not is_extended_resource(name):
        path = "spec.extendedResourceName"
        causes.append(invalid(path, name, "must be a valid extended resource name"))
    return causes


def is_extended_resource(name: str) -> bool:
    """True if a resource name belongs to a domain other than kubernetes.io."""
    domain, slash, _ = name.partition("/")
    native = not slash or domain == "kubernetes.io" or domain.endswith(".kubernetes.io")
    return (
        not native
        and not name.startswith(_QUOTA_PREFIX)
        and names.qualified_name(_QUOTA_PREFIX + name) is None
    )
