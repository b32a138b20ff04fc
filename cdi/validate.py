"""The rules of the CDI specification that a runtime enforces when it loads a spec.

A spec that breaks one is skipped whole by the runtime, which then only says "unresolvable device".
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from cdi.errors import SpecError
from cdi.spec import MOMENTS, DeviceNode, Edits, Hook, Spec

# A single letter, which the specification allows, ends containerd: its parser slices name[1:0]
# (validateVendorOrClassName in container-device-interface's parser.go; seen with containerd 2.1.9).
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*[A-Za-z0-9]")
_DEVICE = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.:-]*[A-Za-z0-9])?")
_ENV = re.compile(r"[^=\0]+=[^\0]*")
_PERMISSIONS = frozenset("rwm")
_MODE_BITS = 0o7777
_IDS = range(2**32)


def validate(spec: Spec) -> None:
    """Check ``spec`` against the specification.

    Raises:
        SpecError: names the first field that breaks a rule.
    """
    validate_devices(spec)
    _check_edits(spec.common, f"CDI spec {spec.kind}, containerEdits")


def validate_devices(spec: Spec) -> None:
    """Check all of ``spec`` but the edits that its devices share.

    Raises:
        SpecError: names the first field that breaks a rule.
    """
    vendor, slash, device_class = spec.kind.partition("/")
    if not slash or not _NAME.fullmatch(vendor) or not _NAME.fullmatch(device_class):
        raise SpecError(f"CDI spec: kind {spec.kind!r} is not <vendor>/<class>")
    if not spec.devices:
        raise SpecError(f"CDI spec {spec.kind}: no devices")
    seen: set[str] = set()
    for device in spec.devices:
        if not _DEVICE.fullmatch(device.name):
            raise SpecError(f"CDI spec {spec.kind}: device name {device.name!r} is not allowed")
        if device.name in seen:
            raise SpecError(f"CDI spec {spec.kind}: device {device.name!r} stands there twice")
        seen.add(device.name)
        if device.edits == Edits():
            raise SpecError(f"CDI spec {spec.kind}: device {device.name!r} changes nothing")
        _check_edits(device.edits, f"CDI spec {spec.kind}, device {device.name!r}")


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
            raise SpecError(f"{where}: additionalGids {gid} is no group that can be added")
    _check_unique((n.path for n in edits.nodes), f"{where}: device node")
    _check_unique((m.container_path for m in edits.mounts), f"{where}: containerPath")


def _check_node(node: DeviceNode, where: str) -> None:
    _check_path(node.path, f"{where}: device node")
    if node.host_path:
        _check_path(node.host_path, f"{where}: hostPath of {node.path}")
    if (node.major is None) != (node.minor is None):
        raise SpecError(f"{where}: {node.path} needs both major and minor, or none")
    if min(node.major or 0, node.minor or 0) < 0:
        raise SpecError(f"{where}: {node.path} has a negative device number")
    if node.file_mode is not None and not 0 <= node.file_mode <= _MODE_BITS:
        raise SpecError(f"{where}: fileMode {node.file_mode} of {node.path} is no file mode")
    if node.gid is not None and node.gid not in _IDS:
        raise SpecError(f"{where}: gid {node.gid} of {node.path} is no group")
    if not node.permissions or not _PERMISSIONS.issuperset(node.permissions):
        raise SpecError(f"{where}: permissions {node.permissions!r} of {node.path}")


def _check_hook(hook: Hook, where: str) -> None:
    if hook.moment not in MOMENTS:
        known = ", ".join(sorted(MOMENTS))
        raise SpecError(f"{where}: hookName {hook.moment!r} is none of {known}")
    _check_path(hook.path, f"{where}: path of the hook {hook.moment}")
    _check_env(hook.env, f"{where}, hook {hook.path}")
    if any("\0" in argument for argument in hook.args):
        raise SpecError(f"{where}: an argument of the hook {hook.path} has a zero byte")


def _check_env(env: Iterable[str], where: str) -> None:
    for entry in env:
        if not _ENV.fullmatch(entry):
            raise SpecError(f"{where}: env {entry!r} is not NAME=value")


def _check_path(path: str, what: str) -> None:
    if not path.startswith("/") or "\0" in path or ".." in path.split("/"):
        raise SpecError(f"{what} {path!r} is not an absolute path")


def _check_unique(paths: Iterable[str], what: str) -> None:
    seen: set[str] = set()
    for path in paths:
        if path in seen:
            raise SpecError(f"{what} {path} stands there twice")
        seen.add(path)
