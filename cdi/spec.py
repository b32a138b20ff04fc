"""CDI specs as values, the rules for them, and their encoding for runtimes.

Source of every field and rule: the Container Device Interface specification (SPEC.md) and its
schema. Only the parts that a GPU needs are here: device nodes, bind mounts, hooks, groups and
environment. A runtime ignores a spec that breaks any rule, and then only says "unresolvable
device".
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

CLAIM_CLASS = "claim"
DRIVER_CLASS = "driver"
_READ_ONLY = ["ro", "nosuid", "nodev", "rbind", "rprivate"]
_WRITABLE = ["rw", "nosuid", "nodev", "noexec", "rbind", "rprivate"]
CREATE_CONTAINER = "createContainer"
"""Hook stage after the container's mounts are made and before its root is changed."""

# A single letter, which the specification allows, crashes containerd: its parser slices name[1:0]
# (validateVendorOrClassName in container-device-interface's parser.go; seen with containerd 2.1.9).
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*[A-Za-z0-9]")
_DEVICE = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.:-]*[A-Za-z0-9])?")
_ENV = re.compile(r"[^=\0]+=[^\0]*")


class CdiError(Exception):
    """A spec breaks a rule, or cannot be stored; the text names the field, or path and cause."""


@dataclass(frozen=True, slots=True)
class DeviceNode:
    """A device node in the container.

    ``host_path``: path on the host; empty if it equals ``path``.
    ``major``, ``minor``: numbers of the device. Without ``major`` the runtime takes the numbers
    from the node on the host, which then must exist.
    ``file_mode``: permission bits.
    ``gid``: group of the node; without it the runtime takes the group of the container's user.
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
    """A program of the host that the runtime runs at one stage of a container's life.

    ``moment``: the stage, a word of the specification. ``args``: arguments, the first of which is
    the program's own name. ``env``: strings ``NAME=value``.
    """

    moment: str
    path: str
    args: tuple[str, ...] = ()
    env: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Edits:
    """Changes of a container.

    ``env``: strings ``NAME=value``. ``gids``: additional groups of the container's process.
    """

    env: tuple[str, ...] = ()
    nodes: tuple[DeviceNode, ...] = ()
    mounts: tuple[Mount, ...] = ()
    hooks: tuple[Hook, ...] = ()
    gids: tuple[int, ...] = ()


def joined(*all_edits: Edits) -> Edits:
    """Several edits joined to one; of several nodes or mounts at one path the first counts."""
    env: dict[str, None] = {}
    nodes: dict[str, DeviceNode] = {}
    mounts: dict[str, Mount] = {}
    hooks: dict[Hook, None] = {}
    gids: dict[int, None] = {}
    for edits in all_edits:
        env |= dict.fromkeys(edits.env)
        hooks |= dict.fromkeys(edits.hooks)
        gids |= dict.fromkeys(edits.gids)
        for node in edits.nodes:
            nodes.setdefault(node.path, node)
        for mount in edits.mounts:
            mounts.setdefault(mount.container_path, mount)
    return Edits((*env,), (*nodes.values(),), (*mounts.values(),), (*hooks,), (*gids,))


@dataclass(frozen=True, slots=True)
class Device:
    """A device that a container can ask for by ``<kind>=<name>``."""

    name: str
    edits: Edits


@dataclass(frozen=True, slots=True)
class Spec:
    """All devices of one kind, in one file. ``common``: edits for containers with any of them."""

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
    """The CDI kind of a driver's common spec, used by all claims: ``k8s.<driver>/driver``."""
    return f"{vendor(driver)}/{DRIVER_CLASS}"


def device_id(claim_uid: str, device: str) -> str:
    """The CDI name of a claim's device; unique per claim, so that no runtime's cache is stale."""
    return f"{claim_uid}-{device}"


def encode(spec: Spec) -> dict[str, Any]:
    """The spec as a mapping with the field names of the specification."""
    devices = [{"name": d.name, "containerEdits": _edits(d.edits)} for d in spec.devices]
    encoded: dict[str, Any] = {"cdiVersion": version(spec), "kind": spec.kind, "devices": devices}
    if spec.common != Edits():
        encoded["containerEdits"] = _edits(spec.common)
    return encoded


def version(spec: Spec) -> str:
    """The oldest version of the specification that permits all fields of ``spec``.

    It is 0.7.0 for ``additionalGids``, and otherwise 0.5.0: claims need that for names of devices
    that begin with a digit and for ``hostPath`` of nodes. Every version has hooks.
    """
    edits = (spec.common, *(device.edits for device in spec.devices))
    return "0.7.0" if any(each.gids for each in edits) else "0.5.0"


def _edits(edits: Edits) -> dict[str, Any]:
    """Edits with the field names of the specification; empty fields are left out."""
    encoded: dict[str, Any] = {
        "env": [*edits.env],
        "deviceNodes": [*map(_node, edits.nodes)],
        "mounts": [
            {
                "hostPath": mount.host_path,
                "containerPath": mount.container_path,
                "options": _WRITABLE if mount.writable else _READ_ONLY,
            }
            for mount in edits.mounts
        ],
        "hooks": [
            {"hookName": hook.moment, "path": hook.path}
            | ({"args": [*hook.args]} if hook.args else {})
            | ({"env": [*hook.env]} if hook.env else {})
            for hook in edits.hooks
        ],
        "additionalGids": [*edits.gids],
    }
    return {name: value for name, value in encoded.items() if value}


def _node(node: DeviceNode) -> dict[str, Any]:
    encoded: dict[str, Any] = {"path": node.path}
    if node.host_path not in {"", node.path}:
        encoded["hostPath"] = node.host_path
    if node.major is not None and node.minor is not None:
        encoded |= {"type": "c", "major": node.major, "minor": node.minor}
    if node.file_mode is not None:
        encoded["fileMode"] = node.file_mode
    encoded["permissions"] = node.permissions
    if node.gid is not None:
        encoded["gid"] = node.gid
    return encoded


def validate(spec: Spec) -> None:
    """Check those parts of ``spec`` that come from options, claims and files of the host.

    Raises:
        CdiError: names the first field that breaks a rule.
    """
    vendor, _, device_class = spec.kind.partition("/")
    where = f"CDI spec {spec.kind}"
    if not _NAME.fullmatch(vendor) or not _NAME.fullmatch(device_class):
        raise CdiError(f"CDI spec: kind {spec.kind!r} is not <vendor>/<class>")
    if not spec.devices:
        raise CdiError(f"{where}: no devices")
    names: set[str] = set()
    for device in spec.devices:
        if not _DEVICE.fullmatch(device.name):
            raise CdiError(f"{where}: device name {device.name!r} is not allowed")
        if device.edits == Edits():
            raise CdiError(f"{where}: device {device.name!r} changes nothing")
        _take(names, device.name, f"{where}: device")
        _check_edits(device.edits, where)
    _check_edits(spec.common, where)


def _check_edits(edits: Edits, where: str) -> None:
    for entry in edits.env:
        if not _ENV.fullmatch(entry):
            raise CdiError(f"{where}: env {entry!r} is not NAME=value")
    taken: set[str] = set()
    paths = [hook.path for hook in edits.hooks]
    for node in edits.nodes:
        _take(taken, node.path, f"{where}: device node")
        paths += (node.path, node.host_path or node.path)
    taken = set()
    for mount in edits.mounts:
        _take(taken, mount.container_path, f"{where}: containerPath")
        paths += (mount.host_path, mount.container_path)
    for path in paths:
        if not path.startswith("/") or "\0" in path or ".." in path.split("/"):
            raise CdiError(f"{where}: {path!r} is not an absolute path")


def _take(taken: set[str], name: str, what: str) -> None:
    if name in taken:
        raise CdiError(f"{what} {name} stands there twice")
    taken.add(name)
