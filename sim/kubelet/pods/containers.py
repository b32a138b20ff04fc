"""Containers as they would look from inside, had a runtime created them."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from sim.kubelet.errors import ContainerError

_TYPES = {"b": stat.S_ISBLK, "c": stat.S_ISCHR, "u": stat.S_ISCHR, "p": stat.S_ISFIFO}


def container_view(
    container: Mapping[str, Any], ids: Iterable[str], edits: Iterable[Mapping[str, Any]]
) -> dict[str, Any]:
    """``{name, image, command, cdiDevices, env, devices, mounts, hooks}`` of a container.

    ``env`` is name to value; a device is ``{path, type, major, minor, permissions}``; a mount is
    ``{containerPath, hostPath, options}``. Later edits win, as they do in an OCI spec.

    Raises:
        ContainerError: a device node or a mount's source is not on the host.
    """
    env = {e["name"]: str(e.get("value", "")) for e in container.get("env", ())}
    devices: dict[str, dict[str, Any]] = {}
    mounts: dict[str, dict[str, Any]] = {}
    hooks: list[str] = []
    for edit in edits:
        for assignment in edit.get("env") or ():
            name, _, value = str(assignment).partition("=")
            env[name] = value
        for node in edit.get("deviceNodes") or ():
            devices[node["path"]] = _device(node)
        for mount in edit.get("mounts") or ():
            mounts[mount["containerPath"]] = _mount(mount)
        hooks += [f"{h['hookName']}: {h['path']}" for h in edit.get("hooks") or ()]
    return {
        "name": container["name"],
        "image": container.get("image", ""),
        "command": [*container.get("command", ()), *container.get("args", ())],
        "cdiDevices": list(ids),
        "env": env,
        "devices": [devices[path] for path in sorted(devices)],
        "mounts": [mounts[path] for path in sorted(mounts)],
        "hooks": hooks,
    }


def _device(node: Mapping[str, Any]) -> dict[str, Any]:
    """A device node; without type and major number the host's own file is looked at."""
    kind, major, minor = node.get("type", ""), node.get("major", 0), node.get("minor", 0)
    if not kind or (not major and kind != "p"):
        kind, major, minor = _look_at(node.get("hostPath") or node["path"], kind)
    return {
        "path": node["path"],
        "type": kind,
        "major": major,
        "minor": minor,
        "permissions": node.get("permissions") or "rwm",
    }


def _look_at(path: str, wanted: str) -> tuple[str, int, int]:
    try:
        status = Path(path).stat()
    except OSError as error:
        raise ContainerError(
            f"failed to inject CDI devices: failed to stat CDI host device {path!r}: "
            f"{error.strerror}"
        ) from error
    for kind, matches in _TYPES.items():
        if matches(status.st_mode) and kind == (wanted or kind):
            return kind, os.major(status.st_rdev), os.minor(status.st_rdev)
    raise ContainerError(
        f"failed to inject CDI devices: {path!r} is no device node of type {wanted or 'b, c or p'}"
    )


def _mount(mount: Mapping[str, Any]) -> dict[str, Any]:
    source = mount["hostPath"]
    if mount.get("type") in {None, "", "bind"} and not Path(source).exists():
        raise ContainerError(
            f"failed to create containerd task: error mounting {source!r} to rootfs at "
            f"{mount['containerPath']!r}: no such file or directory"
        )
    return {
        "containerPath": mount["containerPath"],
        "hostPath": source,
        "options": list(mount.get("options") or ()),
    }
