"""Namespaces that opted in to templates of limits, and pods that wait for some."""

from __future__ import annotations

import re

from dra.common.resources import DEVICE_CLASSES, RESOURCE_CLAIM_TEMPLATES, Obj
from tests.controller.helpers.bench import Bench
from tests.controller.helpers.objects import DRIVER, pod

TEMPLATES = RESOURCE_CLAIM_TEMPLATES.plural
_OPTED_IN = {f"{DRIVER}/limits": "claims"}


def namespace(name: str = "default", labels: dict[str, str] | None = None) -> Obj:
    return {"metadata": {"name": name, "labels": _OPTED_IN if labels is None else labels}}


def waiting(name: str, *templates: str) -> Obj:
    """A pod whose claims are not made yet."""
    entries = [
        {"name": f"c{n}", "resourceClaimTemplateName": each} for n, each in enumerate(templates)
    ]
    body = pod(name)
    body["spec"]["resourceClaims"] = entries
    return body


def made(bench: Bench) -> set[str]:
    return {name for plural, name in bench.api.objects if plural == TEMPLATES}


def of_classes(bench: Bench) -> set[str]:
    """Templates of all profiles that there are classes of."""
    return {
        f"nvidia.com-{name}"
        for plural, name in bench.api.objects
        if plural == DEVICE_CLASSES.plural and re.match(r"mig-\d", name)
    }
