"""DeviceClasses: those of this driver, and those that it generates from the nodes' offers."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from dra.claims.claims import class_config, class_selectors
from dra.common.quantity import QuantityError, parse_quantity
from dra.common.resources import DEVICE_CLASSES, Obj, at
from dra.gpu.devices import TYPE_GPU, TYPE_MIG, TYPE_MIG_SHARE, TYPE_SHARE
from dra.gpu.names import NVIDIA_DRIVER, class_name, extended_resource_name, nominal_gigabytes

GPU_CLASS = "gpu.dra.dev"
SHARE_CLASS = "gpu-share.dra.dev"
SLICE_SHARE_CLASS = "mig-share.dra.dev"
ANY_SLICE_CLASS = "mig.dra.dev"
NVIDIA_GPU_CLASS, NVIDIA_SLICE_CLASS = NVIDIA_DRIVER, "mig.nvidia.com"
"""Classes that NVIDIA's DRA driver installs, and that its samples name."""
MOST_PROFILES = 256
"""Most profiles that have a class, of all nodes together: all products sold have some 60."""
MOST_CLASSES = MOST_PROFILES + 16
"""Most generated classes: those of profiles, of other kinds, and some that nobody needs."""
MOST_OF_NODE = 48
"""Most profiles that have a class for the sake of one node: four products have fewer."""
ROUND_SIZES = (5, 10, 20, 40, 80, 160)
"""Memory for which there is a class ``mig-min-<size>gb``, as profile names count it."""


_PER_NAMESPACE = "-per-namespace"
_LARGEST_QUOTA = 2**40
"""MiB, or devices; more than any cluster has."""


@dataclass(frozen=True, slots=True)
class Quota:
    """Upper bounds on what each namespace holds of a class at a time; None where there is none.

    ``fault`` says what is wrong with an annotation: nothing of the class is allocated then.
    """

    devices: int | None = None
    memory_mib: int | None = None
    fault: str = ""


def read_quota(obj: Mapping[str, Any], driver: str) -> Quota | None:
    """Quota of a DeviceClass by its annotations; None without one."""
    prefix = f"{driver}/"
    stated = {
        key.removeprefix(prefix).removesuffix(_PER_NAMESPACE): str(value)
        for key, value in at(obj, "metadata", "annotations", default={}).items()
        if key.startswith(prefix) and key.endswith(_PER_NAMESPACE)
    }
    if not stated:
        return None
    found: dict[str, int] = {}
    for what, value in stated.items():
        key = quota_annotation(driver, what)
        if what not in _EXAMPLES:
            known = " or ".join(quota_annotation(driver, each) for each in _EXAMPLES)
            return Quota(fault=f"annotation {key[:_SHOWN]!r} is not known: write {known}")
        amount = _amount(what, value)
        if amount is None:
            text = f"annotation {key} is {value[:_SHOWN]!r}: write {_EXAMPLES[what]}"
            return Quota(fault=text)
        found[what] = amount
    return Quota(found.get(DEVICES), found.get(MEMORY))


def quota_annotation(driver: str, what: str) -> str:
    """Key of the annotation for ``DEVICES`` or ``MEMORY``."""
    return f"{driver}/{what}{_PER_NAMESPACE}"


DEVICES, MEMORY = "devices", "memory"
_SHOWN = 63
_EXAMPLES = {
    DEVICES: 'a whole number from 0 on, such as "4"',
    MEMORY: 'an amount of memory, such as "80Gi", or "0"',
}


def _amount(what: str, value: str) -> int | None:
    """Number of devices, or MiB; None of a text that says neither, or less than one MiB."""
    try:
        exact = parse_quantity(value) if len(value) <= _SHOWN else Fraction(-1)
    except QuantityError:
        return None
    if what == DEVICES:
        is_whole = value.isascii() and value.isdigit()
        return min(int(value), _LARGEST_QUOTA) if is_whole and exact >= 0 else None
    is_memory = exact == 0 or exact >= 2**20
    return min(int(exact // 2**20), _LARGEST_QUOTA) if is_memory else None


@dataclass(frozen=True, slots=True)
class DeviceClass:
    """A DeviceClass. ``names_us``: a selector names our driver, even if only to rule it out."""

    name: str
    names_us: bool
    selectors: tuple[str, ...]
    config: tuple[Mapping[str, Any], ...]
    extended_resource: str
    quota: Quota | None = None


def generated_label(driver: str) -> str:
    """The label of the classes that the controller makes."""
    return f"{driver}/generated"


def _digest_annotation(driver: str) -> str:
    return f"{driver}/generated-digest"


def _taken_annotation(driver: str) -> str:
    return f"{driver}/extended-resource-taken-by"


def read_class(obj: Mapping[str, Any], driver: str) -> DeviceClass:
    """The class in ``obj``, as far as its text tells."""
    selectors = class_selectors(obj)
    return DeviceClass(
        name=obj["metadata"]["name"],
        names_us=any(names_driver(s, driver) for s in selectors),
        selectors=selectors,
        config=class_config(obj),
        extended_resource=at(obj, "spec", "extendedResourceName", default=""),
        quota=read_quota(obj, driver),
    )


def names_driver(expression: str, driver: str) -> bool:
    """True if the text of a selector has the name of ``driver`` in it."""
    return re.search(rf"(?<![\w.-]){re.escape(driver)}(?![\w.-])", expression) is not None


def looks_ours(name: str) -> bool:
    """True if a class that does not exist is called like one that we would generate."""
    ours = re.match(r"mig-(\d+g\.|min-\d+gb$)", name) is not None
    return ours or name in (ANY_SLICE_CLASS, GPU_CLASS, SHARE_CLASS, SLICE_SHARE_CLASS)


def is_generated(obj: Mapping[str, Any], driver: str) -> bool:
    """True if the controller of ``driver`` made the class."""
    return bool(at(obj, "metadata", "labels", generated_label(driver)) == "true")


def how_to_make_way(obj: Mapping[str, Any]) -> str:
    """Remedy for a class of another that has the name of a generated one."""
    suffix = generated_label("")
    labels = at(obj, "metadata", "labels", default={})
    makers = (
        k.removesuffix(suffix) for k, v in labels.items() if k.endswith(suffix) and v == "true"
    )
    maker = next(makers, "")
    if not maker:
        return "rename it if the generated one is wanted"
    return (
        f"it was generated for the driver {maker}: if that is this driver's former name, delete "
        f"all of these (kubectl delete deviceclasses -l {maker}{suffix}=true)"
    )


def generated_classes(driver: str, profiles: Iterable[str]) -> list[Obj]:
    """The classes to generate, for apply.

    Any slice, whole GPUs, shares of either, one per profile, and one per round size that a profile
    reaches: a claim of ``mig-min-10gb`` gets the smallest profile with at least that much. Under
    NVIDIA's name, its classes too.
    """
    profiles = sorted(profiles)
    is_type = f"device.driver == '{driver}' && device.attributes['{driver}'].type == '{{}}'"
    any_slice = is_type.format(TYPE_MIG)
    classes = [
        _class(driver, ANY_SLICE_CLASS, any_slice),
        _class(driver, GPU_CLASS, is_type.format(TYPE_GPU)),
        _class(driver, SHARE_CLASS, is_type.format(TYPE_SHARE)),
        _class(driver, SLICE_SHARE_CLASS, is_type.format(TYPE_MIG_SHARE)),
    ]
    classes += [
        _class(
            driver,
            class_name(profile),
            f"{any_slice} && device.attributes['{driver}'].profile == '{profile}'",
            extended_resource=extended_resource_name(profile),
        )
        for profile in profiles
    ]
    if driver == NVIDIA_DRIVER:
        whole = is_type.format(TYPE_GPU)
        classes.append(_class(driver, NVIDIA_GPU_CLASS, whole, extended_resource="nvidia.com/gpu"))
        classes.append(_class(driver, NVIDIA_SLICE_CLASS, any_slice))
    largest = max((nominal_gigabytes(profile) for profile in profiles), default=0)
    memory = f"device.capacity['{driver}'].memory"
    classes += [
        _class(
            driver,
            f"mig-min-{size}gb",
            f"{any_slice} && {memory}.compareTo(quantity('{_least_mib(size)}Mi')) >= 0",
        )
        for size in ROUND_SIZES
        if size <= largest
    ]
    return classes


def offered_profiles(
    by_node: Iterable[frozenset[str]], present: Collection[str] = ()
) -> frozenset[str]:
    """The profiles to generate classes of, by those that each node's GPUs have.

    At most ``MOST_PROFILES``: first those that most nodes have, of equals those whose class is
    ``present``. One node alone cannot displace a profile that two others have.
    """
    counts: Counter[str] = Counter()
    kinds = Counter(by_node)
    for profiles, nodes in kinds.items():
        counts.update(dict.fromkeys(profiles, nodes))

    def rank(profile: str) -> tuple[int, bool, str]:
        return -counts[profile], class_name(profile) not in present, profile

    allowed: set[str] = set()
    for profiles in kinds:
        allowed.update(sorted(profiles, key=rank)[:MOST_OF_NODE])
    return frozenset(sorted(allowed, key=rank)[:MOST_PROFILES])


def restricted(wanted: Obj, driver: str, *, carries: bool, taken_by: str) -> Obj:
    """A generated class, for apply, with its extended resource only if it ``carries`` it.

    ``taken_by`` is the class of somebody else that has it, and stands in an annotation.
    """
    spec = {"selectors": wanted["spec"]["selectors"]}
    if carries:
        spec["extendedResourceName"] = wanted["spec"]["extendedResourceName"]
    made = _object(driver, wanted["metadata"]["name"], spec)
    if taken_by:
        made["metadata"]["annotations"][_taken_annotation(driver)] = taken_by
    return made


def _least_mib(size: int) -> int:
    """The least memory that counts as ``size`` gb in the names of profiles.

    They are rounded up: ``1g.5gb`` has 4864 MiB and ``3g.40gb`` 40192 MiB, up to 5 % less than
    they say.
    """
    return size * 1024 * 94 // 100


def needs_write(wanted: Obj, found: Obj, driver: str) -> bool:
    """True if a generated class differs from what it should be.

    Servers that do not know ``extendedResourceName`` drop it silently: the digest of what was
    applied tells that from a class that never had it.
    """
    name, spec, stored = "extendedResourceName", wanted["spec"], at(found, "spec", default={})
    if stored.get("selectors") != spec["selectors"]:
        return True
    if stored.get(name) not in (None, "", spec.get(name)):
        return True
    carried = at(found, "metadata", "annotations", default={})
    if _taken_annotation(driver) in carried.keys() - wanted["metadata"]["annotations"]:
        return True
    return any(
        at(found, "metadata", part, key) != value
        for part in ("labels", "annotations")
        for key, value in wanted["metadata"][part].items()
    )


def _class(driver: str, name: str, expression: str, *, extended_resource: str = "") -> Obj:
    spec: dict[str, Any] = {"selectors": [{"cel": {"expression": expression}}]}
    if extended_resource:
        spec["extendedResourceName"] = extended_resource
    return _object(driver, name, spec)


def _object(driver: str, name: str, spec: dict[str, Any]) -> Obj:
    digest = hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()[:16]
    return {
        "apiVersion": DEVICE_CLASSES.api_version,
        "kind": DEVICE_CLASSES.kind,
        "metadata": {
            "name": name,
            "labels": {generated_label(driver): "true"},
            "annotations": {_digest_annotation(driver): digest},
        },
        "spec": spec,
    }


PROFILE_CLASS = re.compile(r"mig-(\d+)g\.(\d+)gb(\.[a-z]+)*(-me)?")
_PROFILE = re.compile(r"(?:mig[-_.]?)?(\d+)g[-_.]?(\d+)gb?(.*)", re.IGNORECASE)
_SIZE = re.compile(r"(?:mig[-_.]?)?min[-_.]?(\d+)gb?", re.IGNORECASE)


def meant_ours(name: str) -> bool:
    """True if a class that does not exist is called like a generated one, or nearly so."""
    return looks_ours(name) or meant(name) != ""


def meant(name: str) -> str:
    """The generated class that ``name`` resembles: ``mig-1g.5gb`` for ``mig-1g5gb``; or empty."""
    if size := _SIZE.fullmatch(name):
        return f"mig-min-{size[1]}gb"
    found = _PROFILE.fullmatch(name)
    if found is None or PROFILE_CLASS.fullmatch(name):
        return name if found else ""
    more = re.sub(r"[-+_]", ".", found[3]).strip(".").lower()
    return f"mig-{found[1]}g.{found[2]}gb{'.' * bool(more)}{more}"


def no_such_class(name: str, known: Iterable[str]) -> str:
    """The sentence on a class that is not among those ``known``."""
    nearest = _nearest(meant(name), known)
    asked = f"did you mean {nearest!r}? " if nearest else ""
    return f"DeviceClass {name!r} does not exist; {asked}kubectl get deviceclasses lists all"


def _nearest(name: str, known: Iterable[str]) -> str:
    """The class of ``known`` nearest to ``name``: by compute slices first, then by memory."""
    alike = [k for k in known if name and meant(k) == k and _is_size(k) == _is_size(name)]
    return min(alike, key=lambda k: (*_apart(k, name), _bare(k) != _bare(name), k), default="")


def _is_size(name: str) -> bool:
    return _SIZE.fullmatch(name) is not None


def _bare(name: str) -> str:
    return re.sub(r"\W", "", name)


def _apart(one: str, other: str) -> list[int]:
    numbers = (map(int, re.findall(r"\d+", each)) for each in (one, other))
    return [abs(a - b) for a, b in zip(*numbers, strict=True)]


def resource_of(device_class: Obj) -> str:
    """The ``extendedResourceName`` of a class; empty without one."""
    return str(at(device_class, "spec", "extendedResourceName", default=""))


def precedes(one: Obj, other: Obj) -> bool:
    """True if kube-scheduler takes ``one`` of two classes with the same extended resource."""
    first, second = (str(each["metadata"].get("creationTimestamp") or "") for each in (one, other))
    if first != second:
        return first > second
    return str(one["metadata"]["name"]) < str(other["metadata"]["name"])


def holders(objects: Iterable[Obj], driver: str) -> dict[str, Obj]:
    """By extended resource, the class with it that is not generated; of several the one in use."""
    found: dict[str, Obj] = {}
    for obj in objects:
        name = resource_of(obj)
        if (
            name
            and not is_generated(obj, driver)
            and (name not in found or precedes(obj, found[name]))
        ):
            found[name] = obj
    return found


def may_carry(
    resource: str,
    own: Obj | None,
    holder: Obj | None,
    *,
    served: bool,
) -> bool:
    """True if our class, which is ``own`` now, is to have the extended resource ``resource``.

    ``holder`` is a class of somebody else that has it. Without one, ours has it while
    kube-scheduler allocates a node (``served``). With one that goes before ours, ours keeps the
    name if it has it: ours is out of use then, and giving the name up would make kube-scheduler
    forget the other class.
    """
    if holder is None:
        return served
    return own is not None and resource_of(own) == resource and precedes(holder, own)
