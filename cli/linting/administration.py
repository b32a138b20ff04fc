"""Rules for what administrators write: classes of nodes, mig-parted's files, quotas.

Files by which NVIDIA's device plugin shares GPUs become classes of nodes; their fields are those of
``api/config/v1`` of NVIDIA/k8s-device-plugin.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

import yaml

from api.config import API_VERSION, GPU_KIND, KIND
from api.errors import InvalidObjectError
from api.nodeclass import KIND as NODE_CLASS
from api.nodeclass import Layout, decode_layouts, decode_node_class, is_layouts
from cli.linting.documents import Document, Level, Path, Remark, entries, mapping, text
from dra.claims.classes import SHARE_CLASS, SLICE_SHARE_CLASS
from dra.common.resources import Obj
from dra.limits.asks import is_profile
from dra.limits.others import renamed

_AT: Final[Path] = ("spec", "hard")
_DEVICES: Final = "deviceclass.resource.k8s.io/devices"
_MEMORY: Final = re.compile(
    r"nvidia\.com/gpumem(-percentage)?|nvidia\.com/gpucores|"
    r"instaslice\.redhat\.com/accelerator-memory-quota"
)


_STRATEGIES: Final = {"timeSlicing": "TimeSlicing", "mps": "MPS"}


def check_layouts(document: Document) -> Iterator[Remark]:
    """Findings about a class of nodes, a file of mig-parted's, or a ConfigMap with such files."""
    if is_layouts(document.obj) or document.kind == NODE_CLASS:
        try:
            layouts = _decode(document.obj)
        except InvalidObjectError as error:
            path = _steps(document.obj, error.path)
            yield document.remark(Level.ERROR, path, error.problem)
            return
        before: Path = ("layouts",) if document.kind == NODE_CLASS else ()
        yield from _small_instances(document, layouts, before)
        return
    if document.kind == "ConfigMap":
        for key, content in mapping(document.obj, "data").items():
            yield from _check_file(document, str(key), content)


def _check_file(document: Document, key: str, content: Any) -> Iterator[Remark]:
    """Findings about a file of a ConfigMap; none about a file of another kind."""
    try:
        obj = yaml.safe_load(content) if isinstance(content, str) else None
    except yaml.YAMLError:
        return
    if is_layouts(obj) or (isinstance(obj, dict) and obj.get("kind") == NODE_CLASS):
        try:
            _decode(obj)
        except InvalidObjectError as error:
            yield document.remark(Level.ERROR, ("data", key), str(error))


def _decode(obj: Any) -> dict[str, Layout]:
    return decode_layouts(obj) if is_layouts(obj) else decode_node_class(obj).layouts


def _small_instances(
    document: Document, layouts: dict[str, Layout], before: Path
) -> Iterator[Remark]:
    """Findings about compute instances smaller than their GPU instance: mig-parted makes these."""
    for layout, listed in layouts.items():
        for index, entry in enumerate(listed):
            for name, _ in entry.counts:
                if "c." in name:
                    where = (*before, "mig-configs", layout, index, "mig-devices", name)
                    yield document.remark(
                        Level.WARNING,
                        where,
                        "compute instances smaller than their GPU instance are not made here: a "
                        "node with this layout says that it cannot have it; name the whole "
                        f"profile ({name.partition('.')[2]})",
                    )


def _steps(obj: Any, path: str) -> Path:
    """Keys and indexes of a dotted path into ``obj``, whose keys may have dots themselves."""
    steps: list[str | int] = []
    while path:
        if path.startswith("["):
            number, _, path = path[1:].partition("]")
            steps.append(int(number))
        else:
            known = obj if isinstance(obj, dict) else {}
            keys = [k for k in known if path == k or path.startswith((f"{k}.", f"{k}["))]
            key = max(keys, key=len, default=path)
            steps.append(key)
            path = path[len(key) :]
        path = path.removeprefix(".")
        try:
            obj = obj[steps[-1]]
        except (KeyError, IndexError, TypeError):
            obj = None
    return tuple(steps)


def check_quota(document: Document) -> Iterator[Remark]:
    """Findings about what a ResourceQuota does not limit once pods have claims."""
    for key in _hard(document):
        resource = _resource(key)
        if is_profile(resource):
            message = (
                "it counts nothing where the controller allocates, as pods have claims then: "
                f"write {_of_class(resource)}, as kubectl mig convert does"
            )
            yield document.remark(Level.WARNING, (*_AT, key), message)
        elif _MEMORY.fullmatch(resource):
            message = (
                "a quota has no memory of slices: count slices by class, each as "
                f"mig-1g.5gb.{_DEVICES}; those asked for by memory as mig.dra.dev.{_DEVICES}"
            )
            yield document.remark(Level.ERROR, (*_AT, key), message)


def convert_quota(document: Document) -> Iterator[Remark]:
    """Have a ResourceQuota limit devices by DeviceClass instead of MIG resources, in place.

    Yields a remark about each limit that has no such form.
    """
    yield from (each for each in check_quota(document) if each.level is Level.ERROR)
    hard = _hard(document)
    for key in [*hard]:
        if is_profile(_resource(key)):
            hard[_of_class(_resource(key))] = hard.pop(key)


def _hard(document: Document) -> dict[str, Any]:
    return mapping(document.obj, *map(str, _AT)) if document.kind == "ResourceQuota" else {}


def _resource(key: str) -> str:
    """The resource that a quota's ``key`` counts, by the name that this driver has for it."""
    name = str(key).removeprefix("requests.").removeprefix("limits.")
    return renamed(name) or name


def _of_class(resource: str) -> str:
    return f"{resource.removeprefix('nvidia.com/')}.{_DEVICES}"


def is_plugin_config(obj: Obj) -> bool:
    """True if an object is meant to be a configuration file of NVIDIA's device plugin."""
    return "kind" not in obj and isinstance(obj.get("sharing"), dict) and "version" in obj


def convert_plugin_config(document: Document) -> tuple[Obj, list[Remark]]:
    """The class of nodes that a file of the device plugin becomes, and remarks about it."""
    remarks: list[Remark] = []
    shares, slice_shares = 1, 1
    for method, strategy in _STRATEGIES.items():
        for index, entry in entries(document.obj, "sharing", method, "resources"):
            path: Path = ("sharing", method, "resources", index)
            name, replicas = text(entry, "name"), entry.get("replicas")
            profile = name.removeprefix("nvidia.com/mig-") if "/mig-" in name else ""
            if not isinstance(replicas, int) or replicas < 1:
                message = f"replicas has to be a number from 1 on, not {replicas!r}"
                remarks.append(document.remark(Level.ERROR, (*path, "replicas"), message))
                continue
            if profile:
                slice_shares = max(slice_shares, replicas)
            else:
                shares = max(shares, replicas)
            message = _of_shares(strategy, replicas, profile)
            remarks.append(document.remark(Level.WARNING, path, message))
    mode = "on-demand" if slice_shares > 1 and shares == 1 else "whole"
    made: Obj = {"apiVersion": API_VERSION, "kind": "MigNodeClass", "mode": mode, "shares": shares}
    return {**made, **({"sliceShares": slice_shares} if slice_shares > 1 else {})}, remarks


def _of_shares(strategy: str, replicas: int, profile: str) -> str:
    said = (
        f"sliceShares: {replicas} lets as many claims of class {SLICE_SHARE_CLASS} have one slice "
        f"of those that a selector of theirs names (profile == '{profile}')"
        if profile
        else f"shares: {replicas} gives each GPU whose MIG mode is off to as many claims of class "
        f"{SHARE_CLASS}"
    )
    said += "; pods ask by such claims, not by limits"
    if strategy == "MPS":
        return (
            f"{said}. For the limits of the device plugin's MPS give the claims a "
            f"{KIND if profile else GPU_KIND} with sharing.strategy 'MPS' and "
            f"activeThreadPercentage: {100 // replicas}"
        )
    return said
