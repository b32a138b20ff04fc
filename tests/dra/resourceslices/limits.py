"""Limits of the API server on a ResourceSlice (validation.go of resource.k8s.io, 1.36)."""

from __future__ import annotations

import re
from collections.abc import Iterator

from dra.common.resources import Obj

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,31}")
_LISTS = ("ints", "bools", "strings", "versions")


def breaches(spec: Obj) -> list[str]:
    """Rules of a real API server that ``spec`` breaks, in words."""
    return [words for words, holds in _rules(spec) if not holds]


def _rules(spec: Obj) -> Iterator[tuple[str, bool]]:
    places = [*{"nodeName", "nodeSelector", "allNodes", "perDeviceNodeSelection"} & spec.keys()]
    devices, sets = spec.get("devices", []), spec.get("sharedCounters", [])
    yield "driver and pool", bool(spec["driver"] and spec["pool"]["name"])
    yield "number of slices", spec["pool"]["resourceSliceCount"] > 0
    yield f"one place, not {places}", len(places) == 1
    yield "counters or devices", not (devices and sets)
    yield "names once", len({d["name"] for d in devices}) == len(devices)
    heavy = any(d.get("taints") or d.get("consumesCounters") or _has_lists(d) for d in devices)
    yield f"{len(devices)} devices", len(devices) <= (64 if heavy else 128)
    yield from _counters(sets, most=8, name="name")
    for device in devices:
        attributes, name = device.get("attributes", {}), device["name"]
        yield f"name {name}", bool(_LABEL.fullmatch(name))
        yield f"entries of {name}", len(attributes) + len(device.get("capacity", {})) <= 32
        values = sum(sum(len(a.get(n, [])) for n in _LISTS) or 1 for a in attributes.values())
        yield f"values of {name}", values <= 48
        for key, attribute in attributes.items():
            yield f"{name} {key}", bool(_IDENTIFIER.fullmatch(key.rpartition("/")[2]))
            short = len(attribute.get("string", "").encode()) <= 64
            yield f"value of {name} {key}", short and len(attribute) == 1
        binding = [len(device.get(f"binding{kind}Conditions", [])) for kind in ("", "Failure")]
        yield f"conditions of {name}", max(binding) <= 4 and bool(binding[0]) == bool(binding[1])
        yield f"taints of {name}", len(device.get("taints", [])) <= 16
        yield from _counters(device.get("consumesCounters", []), most=2, name="counterSet")


def _has_lists(device: Obj) -> bool:
    return any(name in a for a in device.get("attributes", {}).values() for name in _LISTS)


def _counters(sets: list[Obj], *, most: int, name: str) -> Iterator[tuple[str, bool]]:
    names = [each[name] for each in sets]
    yield f"sets of counters {names}", len(sets) <= most and len({*names}) == len(names)
    for each in sets:
        known = [each[name], *each["counters"]]
        yield f"counters {known}", 1 < len(known) <= 33 and all(map(_LABEL.fullmatch, known))
