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

MOMENTS = frozenset(
    {"prestart", "createRuntime", CREATE_CONTAINER, "startContainer", "poststart", "poststop"}
)

# A single letter, which the specification allows, ends containerd: its parser slices name[1:0]
# (validateVendorOrClassName in container-device-interface's parser.go; seen with containerd 2.1.9).
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*[A-Za-z0-9]")
_DEVICE = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.:-]*[A-Za-z0-9])?")
_ENV = re.compile(r"[^=\0]+=[^\0]*")
_PERMISSIONS = frozenset("rwm")
_MODE_BITS = 0o7777
_IDS = range(2**32)


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

    ``moment`` is one of :data:`MOMENTS`. ``args`` begin with the program's own name, ``env`` are
    ``NAME=value`` strings.
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
    encoded: dict[str, Any] = {}
    if edits.env:
        encoded["env"] = list(edits.env)
    if edits.nodes:
        encoded["deviceNodes"] = [_node(n) for n in edits.nodes]
    if edits.mounts:
        encoded["mounts"] = [_mount(m) for m in edits.mounts]
    if edits.hooks:
        encoded["hooks"] = [_hook(h) for h in edits.hooks]
    if edits.gids:
        encoded["additionalGids"] = list(edits.gids)
    return encoded


def _node(node: DeviceNode) -> dict[str, Any]:
    encoded: dict[str, Any] = {"path": node.path}
    if node.host_path and node.host_path != node.path:
        encoded["hostPath"] = node.host_path
    if node.major is not None and node.minor is not None:
        encoded |= {"type": "c", "major": node.major, "minor": node.minor}
    if node.file_mode is not None:
        encoded["fileMode"] = node.file_mode
    encoded["permissions"] = node.permissions
    if node.gid is not None:
        encoded["gid"] = node.gid
    return encoded


def _mount(mount: Mount) -> dict[str, Any]:
    return {
        "hostPath": mount.host_path,
        "containerPath": mount.container_path,
        "options": _WRITABLE if mount.writable else _READ_ONLY,
    }


def _hook(hook: Hook) -> dict[str, Any]:
    encoded: dict[str, Any] = {"hookName": hook.moment, "path": hook.path}
    if hook.args:
        encoded["args"] = list(hook.args)
    if hook.env:
        encoded["env"] = list(hook.env)
    return encoded


def validate(spec: Spec) -> None:
    """Check ``spec`` against the specification.

    Raises:
        CdiError: names the first field that breaks a rule.
    """
    vendor, slash, device_class = spec.kind.partition("/")
    if not slash or not _NAME.fullmatch(vendor) or not _NAME.fullmatch(device_class):
        raise CdiError(f"CDI spec: kind {spec.kind!r} is not <vendor>/<class>")
    if not spec.devices:
        raise CdiError(f"CDI spec {spec.kind}: no devices")
    seen: set[str] = set()
    for device in spec.devices:
        if not _DEVICE.fullmatch(device.name):
            raise CdiError(f"CDI spec {spec.kind}: device name {device.name!r} is not allowed")
        if device.name in seen:
            raise CdiError(f"CDI spec {spec.kind}: device {device.name!r} stands there twice")
        seen.add(device.name)
        if device.edits == Edits():
            raise CdiError(f"CDI spec {spec.kind}: device {device.name!r} changes nothing")
        _check_edits(device.edits, f"CDI spec {spec.kind}, device {device.name!r}")
    _check_edits(spec.common, f"CDI spec {spec.kind}, containerEdits")


def _check_edits(edits: Edits, where: str) -> None:
    _check_env(edits.env, where)
    for node in edits.nodes:
        _check_node(node, where)
    for mount in edits.mounts:
        _check_path(mount.host_path, f"{where}: hostPath of a mount")
        _check_path(mount.container_path, f"{where}: containerPath of a mount")
    for hook in edits.hooks:
        _check_hook(hook, where)
    for gid in edits.gids:
        if gid not in _IDS or gid == 0:
            raise CdiError(f"{where}: additionalGids {gid} is no group that can be added")
    _check_unique((n.path for n in edits.nodes), f"{where}: device node")
    _check_unique((m.container_path for m in edits.mounts), f"{where}: containerPath")


def _check_node(node: DeviceNode, where: str) -> None:
    _check_path(node.path, f"{where}: device node")
    if node.host_path:
        _check_path(node.host_path, f"{where}: hostPath of {node.path}")
    if (node.major is None) != (node.minor is None):
        raise CdiError(f"{where}: {node.path} needs both major and minor, or none")
    if min(node.major or 0, node.minor or 0) < 0:
        raise CdiError(f"{where}: {node.path} has a negative device number")
    if node.file_mode is not None and not 0 <= node.file_mode <= _MODE_BITS:
        raise CdiError(f"{where}: fileMode {node.file_mode} of {node.path} is no file mode")
    if node.gid is not None and node.gid not in _IDS:
        raise CdiError(f"{where}: gid {node.gid} of {node.path} is no group")
    if not node.permissions or not _PERMISSIONS.issuperset(node.permissions):
        raise CdiError(f"{where}: permissions {node.permissions!r} of {node.path}")


def _check_hook(hook: Hook, where: str) -> None:
    if hook.moment not in MOMENTS:
        known = ", ".join(sorted(MOMENTS))
        raise CdiError(f"{where}: hookName {hook.moment!r} is none of {known}")
    _check_path(hook.path, f"{where}: path of the hook {hook.moment}")
    _check_env(hook.env, f"{where}, hook {hook.path}")
    if any("\0" in argument for argument in hook.args):
        raise CdiError(f"{where}: an argument of the hook {hook.path} has a zero byte")


def _check_env(env: Iterable[str], where: str) -> None:
    for entry in env:
        if not _ENV.fullmatch(entry):
            raise CdiError(f"{where}: env {entry!r} is not NAME=value")


def _check_path(path: str, what: str) -> None:
    if not path.startswith("/") or "\0" in path or ".." in path.split("/"):
        raise CdiError(f"{what} {path!r} is not an absolute path")


def _check_unique(paths: Iterable[str], what: str) -> None:
    seen: set[str] = set()
    for path in paths:
        if path in seen:
            raise CdiError(f"{what} {path} stands there twice")
        seen.add(path)
