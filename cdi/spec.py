"""CDI specs as values, the rules that runtimes hold them to, and the mapping that they read.

Source of every field and rule: the Container Device Interface specification (SPEC.md) and its
schema. Only what a GPU needs is modelled: device nodes, bind mounts, hooks, groups and environment.
A spec that breaks a rule is skipped whole by the runtime, which then only says "unresolvable
device".
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")
CLAIM_CLASS = "claim"
DRIVER_CLASS = "driver"
_READ_ONLY = ["ro", "nosuid", "nodev", "rbind", "rprivate"]
_WRITABLE = ["rw", "nosuid", "nodev", "noexec", "rbind", "rprivate"]
CREATE_CONTAINER = "createContainer"
"""Hook stage after the container's mounts are made and before its root is changed."""

# A single letter, which the specification allows, ends containerd: its parser slices name[1:0]
# (validateVendorOrClassName in container-device-interface's parser.go; seen with containerd 2.1.9).
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*[A-Za-z0-9]")
_DEVICE = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.:-]*[A-Za-z0-9])?")
_ENV = re.compile(r"[^=\0]+=[^\0]*")


class CdiError(Exception):
    """A spec breaks a rule, or cannot be kept: names the field, or the path and what refused it."""


@dataclass(frozen=True, slots=True)
class DeviceNode:
    """A device node in the container.

    ``host_path`` is empty where it equals ``path``. Without ``major`` the runtime looks the node up
    on the host, and it has to exist there; with it, it has not. ``file_mode`` are permission bits,
    ``gid`` is the node's group; without it the runtime takes that of the container's user.
    """

    path: str
    host_path: str = ""
    major: int | None = None
    minor: int | None = None
    file_mode: int | None = None
    permissions: str = "rw"
    gid: int | None = None


@dataclass(frozen=True, slots=True)
class Mount:
    """A bind mount of a file or directory of the host, read-only unless ``writable``."""

    host_path: str
    container_path: str
    writable: bool = False


@dataclass(frozen=True, slots=True)
class Hook:
    """A program of the host that the runtime runs at one moment of a container's life.

    ``moment`` is a word of the specification. ``args`` begin with the program's own name, ``env``
    are ``NAME=value`` strings.
    """

    moment: str
    path: str
    args: tuple[str, ...] = ()
    env: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Edits:
    """Changes of a container: ``env`` are ``NAME=value`` strings.

    ``gids`` are groups that the container's process gets besides its own.
    """

    env: tuple[str, ...] = ()
    nodes: tuple[DeviceNode, ...] = ()
    mounts: tuple[Mount, ...] = ()
    hooks: tuple[Hook, ...] = ()
    gids: tuple[int, ...] = ()


def joined(*all_edits: Edits) -> Edits:
    """Several edits as one; of nodes and mounts at the same path the first counts."""
    return Edits(
        env=tuple(dict.fromkeys(text for e in all_edits for text in e.env)),
        nodes=_first((n.path, n) for e in all_edits for n in e.nodes),
        mounts=_first((m.container_path, m) for e in all_edits for m in e.mounts),
        hooks=tuple(dict.fromkeys(hook for e in all_edits for hook in e.hooks)),
        gids=tuple(dict.fromkeys(gid for e in all_edits for gid in e.gids)),
    )


def _first(pairs: Iterable[tuple[str, T]]) -> tuple[T, ...]:
    found: dict[str, T] = {}
    for path, edit in pairs:
        found.setdefault(path, edit)
    return tuple(found.values())


@dataclass(frozen=True, slots=True)
class Device:
    """A device that a container can ask for by ``<kind>=<name>``."""

    name: str
    edits: Edits


@dataclass(frozen=True, slots=True)
class Spec:
    """All devices of one kind in one file. ``common`` goes to every container with any of them."""

    kind: str
    devices: tuple[Device, ...]
    common: Edits = Edits()

    def qualified(self, device: str) -> str:
        """The name that kubelet hands to the runtime: ``<vendor>/<class>=<device>``."""
        return f"{self.kind}={device}"


def vendor(driver: str) -> str:
    """The CDI vendor of a DRA driver: ``k8s.<driver>``."""
    return f"k8s.{driver}"


def claim_kind(driver: str) -> str:
    """The CDI kind of a driver's claims: ``k8s.<driver>/claim``."""
    return f"{vendor(driver)}/{CLAIM_CLASS}"


def driver_kind(driver: str) -> str:
    """The CDI kind of what all claims of a node have in common: ``k8s.<driver>/driver``."""
    return f"{vendor(driver)}/{DRIVER_CLASS}"


def device_id(claim_uid: str, device: str) -> str:
    """The CDI name of a claim's device. Unique per claim, so that no runtime's cache is stale."""
    return f"{claim_uid}-{device}"


def _minimum_version(spec: Spec) -> str:
    """The oldest version of the specification that knows everything in ``spec``.

    0.5.0 allows device names that begin with a digit (claim UIDs do) and ``hostPath`` of nodes,
    0.6.0 a dot in the class, 0.7.0 ``additionalGids``. Hooks were there from the beginning.
    """
    edits = [spec.common, *(d.edits for d in spec.devices)]
    if any(e.gids for e in edits):
        return "0.7.0"
    if "." in spec.kind.partition("/")[2]:
        return "0.6.0"
    digits = any(d.name[:1].isdigit() for d in spec.devices)
    if digits or any(n.host_path for e in edits for n in e.nodes):
        return "0.5.0"
    return "0.3.0"


def encode(spec: Spec) -> dict[str, Any]:
    """The spec as a mapping in the words of the specification."""
    encoded: dict[str, Any] = {
        "cdiVersion": _minimum_version(spec),
        "kind": spec.kind,
        "devices": [{"name": d.name, "containerEdits": _edits(d.edits)} for d in spec.devices],
    }
    if spec.common != Edits():
        encoded["containerEdits"] = _edits(spec.common)
    return encoded


def _edits(edits: Edits) -> dict[str, Any]:
    return _filled(
        env=[*edits.env],
        deviceNodes=[*map(_node, edits.nodes)],
        mounts=[
            {
                "hostPath": mount.host_path,
                "containerPath": mount.container_path,
                "options": _WRITABLE if mount.writable else _READ_ONLY,
            }
            for mount in edits.mounts
        ],
        hooks=[
            {
                "hookName": hook.moment,
                "path": hook.path,
                **_filled(args=[*hook.args], env=[*hook.env]),
            }
            for hook in edits.hooks
        ],
        additionalGids=[*edits.gids],
    )


def _node(node: DeviceNode) -> dict[str, Any]:
    has_number = node.major is not None and node.minor is not None
    return {"path": node.path} | _filled(
        hostPath=node.host_path if node.host_path != node.path else None,
        type="c" if has_number else None,
        major=node.major if has_number else None,
        minor=node.minor if has_number else None,
        fileMode=node.file_mode,
        permissions=node.permissions,
        gid=node.gid,
    )


def _filled(**fields: Any) -> dict[str, Any]:
    """The fields that have a value; numbers may be 0."""
    return {name: value for name, value in fields.items() if value or value == 0}


def validate(spec: Spec) -> None:
    """Check what of ``spec`` comes from options, claims and files of the host.

    Raises:
        CdiError: names the first field that breaks a rule.
    """
    vendor, _, device_class = spec.kind.partition("/")
    if not _NAME.fullmatch(vendor) or not _NAME.fullmatch(device_class):
        raise CdiError(f"CDI spec: kind {spec.kind!r} is not <vendor>/<class>")
    names = [device.name for device in spec.devices]
    for name in names:
        if not _DEVICE.fullmatch(name):
            raise CdiError(f"CDI spec {spec.kind}: device name {name!r} is not allowed")
    _check_unique(names, f"CDI spec {spec.kind}: device")
    for device in spec.devices:
        if device.edits == Edits():
            raise CdiError(f"CDI spec {spec.kind}: device {device.name!r} changes nothing")
    for edits in (spec.common, *(device.edits for device in spec.devices)):
        _check_edits(edits, f"CDI spec {spec.kind}")
    if not spec.devices:
        raise CdiError(f"CDI spec {spec.kind}: no devices")


def _check_edits(edits: Edits, where: str) -> None:
    for entry in edits.env:
        if not _ENV.fullmatch(entry):
            raise CdiError(f"{where}: env {entry!r} is not NAME=value")
    paths = [path for n in edits.nodes for path in (n.path, n.host_path or n.path)]
    paths += [path for m in edits.mounts for path in (m.host_path, m.container_path)]
    for path in (*paths, *(hook.path for hook in edits.hooks)):
        if not path.startswith("/") or "\0" in path or ".." in path.split("/"):
            raise CdiError(f"{where}: {path!r} is not an absolute path")
    _check_unique([n.path for n in edits.nodes], f"{where}: device node")
    _check_unique([m.container_path for m in edits.mounts], f"{where}: containerPath")


def _check_unique(names: list[str], what: str) -> None:
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise CdiError(f"{what} {twice} stands there twice")
