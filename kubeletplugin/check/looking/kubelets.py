"""Kubelet's directories: where plugins register, who has registered, which gates are set."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import yaml

from kubeletplugin.check.items import Item
from kubeletplugin.check.notebook import Notebook
from kubeletplugin.host.roots import Roots

_CONNECT_SECONDS = 1.0
_GATES = ("DynamicResourceAllocation", "ResourceHealthStatus")


def examine(notebook: Notebook, roots: Roots, *, driver: str) -> None:
    """Kubelet's directories, the sockets in them, and its configuration file's gates."""
    item = Item.KUBELET
    gates = _gates(roots.kubelet / "config.yaml")
    notebook.fact(item, *(f"{name}={value}" for name, value in gates.items()))
    off = [name for name, value in gates.items() if name == _GATES[0] and value is False]
    if off:
        notebook.missing(item, f"kubelet has {off[0]}=false", "set it to true, restart kubelet")
        return
    if not roots.registry.is_dir():
        notebook.missing(
            item,
            f"there is no {roots.registry}: no kubelet has run here",
            "start kubelet, or name its directory by --kubelet-root",
        )
        return
    if not os.access(roots.registry, os.W_OK):
        notebook.missing(item, f"{roots.registry} is not writable", "run it as root")
        return
    sockets = {p.name: _listens(p) for p in sorted(roots.registry.iterdir()) if _is_socket(p)}
    words = [f"{name} ({'answers' if alive else 'nobody'})" for name, alive in sockets.items()]
    notebook.fact(item, *words)
    ours = [name for name, alive in sockets.items() if name.startswith(driver) and alive]
    if ours:
        notebook.ok(item, f"this plugin has registered: {', '.join(ours)}")
    else:
        notebook.ok(item, f"{roots.registry} is there; no plugin of {driver} listens now")


def _is_socket(path: Path) -> bool:
    try:
        return stat.S_ISSOCK(path.lstat().st_mode)
    except OSError:
        return False


def _listens(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(_CONNECT_SECONDS)
        try:
            connection.connect(str(path))
        except OSError:
            return False
        return True


def _gates(path: Path) -> dict[str, bool]:
    """The feature gates about devices of kubelet's configuration file."""
    try:
        config = yaml.safe_load(path.read_text())
        found = dict(config.get("featureGates") or {})
    except (OSError, yaml.YAMLError, AttributeError, TypeError, ValueError):
        return {}
    return {
        str(name): bool(value)
        for name, value in found.items()
        if name in _GATES or str(name).startswith("DRA")
    }
