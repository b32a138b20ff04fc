"""CDI directories with what others have put there, and what the container runtime's files say."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kubeletplugin.check.items import Item
from kubeletplugin.check.notebook import Notebook
from kubeletplugin.host.roots import Roots

_DIRECTORIES = ("/etc/cdi", "/var/run/cdi")
_KIND = re.compile(r"""^\s*"?kind"?\s*:\s*"?([^",\s]+)""", re.MULTILINE)
_CONTAINERD = (
    "/etc/containerd/config.toml",
    "/var/lib/rancher/k3s/agent/etc/containerd/config.toml",
)
_MOST_BYTES = 1 << 20


def examine(notebook: Notebook, roots: Roots) -> None:
    """CDI directories, and whether the runtime reads them."""
    _cdi(notebook, roots)
    _runtime(notebook, roots)


def _cdi(notebook: Notebook, roots: Roots) -> None:
    places = {str(roots.cdi): roots.cdi}
    places |= {path: folder for path in _DIRECTORIES if (folder := roots.on_host(path)).is_dir()}
    for path, folder in places.items():
        specs = sorted(_specs(folder))
        notebook.fact(Item.CDI, f"{path}: {', '.join(specs) or 'no specs'}")
    if not roots.cdi.is_dir():
        parent = next(p for p in roots.cdi.parents if p.is_dir())
        if not os.access(parent, os.W_OK):
            notebook.missing(
                Item.CDI, f"{roots.cdi} is not there and cannot be made", f"make {parent} writable"
            )
            return
        notebook.note(Item.CDI, f"{roots.cdi} is not there yet; the plugin makes it")
    elif os.access(roots.cdi, os.W_OK):
        others = sum(len(list(_specs(folder))) for folder in places.values())
        notebook.ok(Item.CDI, f"{roots.cdi} is writable; {others} specs in {len(places)} places")
    else:
        notebook.missing(Item.CDI, f"{roots.cdi} is not writable", "run it as root")


def _specs(folder: Path) -> Iterator[str]:
    """``file (kind)`` of each spec of a directory."""
    try:
        files = [p for p in folder.iterdir() if p.suffix in {".json", ".yaml"}]
    except OSError:
        return
    for path in files:
        try:
            with path.open(errors="replace") as file:
                kind = _KIND.search(file.read(_MOST_BYTES))
        except OSError:
            kind = None
        yield f"{path.name} ({kind.group(1) if kind else 'not understood'})"


def _runtime(notebook: Notebook, roots: Roots) -> None:
    item = Item.CONTAINER_RUNTIME
    if roots.on_host("/etc/crio").is_dir():
        notebook.ok(item, "CRI-O reads CDI specs by default")
        return
    path = next((p for p in _CONTAINERD if roots.on_host(p).is_file()), None)
    if path is None:
        notebook.note(item, "no configuration of containerd or CRI-O found: defaults are in force")
        return
    try:
        config = tomllib.loads(roots.on_host(path).read_text())
    except (OSError, ValueError) as error:
        notebook.note(item, f"{path} cannot be read: {error}")
        return
    settings = dict(_settings(config))
    notebook.fact(
        item,
        f"{path}: version {config.get('version', 1)}",
        *(f"{k}={v}" for k, v in settings.items()),
    )
    enabled = settings.get("enable_cdi")
    if enabled is False:
        notebook.missing(
            item, f"{path} has enable_cdi = false", "set enable_cdi = true and restart containerd"
        )
    elif enabled is None:
        notebook.note(
            item,
            f"{path} does not set enable_cdi: it is on from containerd 2.0, off in 1.7",
            "with 1.7 set enable_cdi = true and restart containerd",
        )
    else:
        notebook.ok(item, f"{path} has enable_cdi = true")


def _settings(table: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """The settings about CDI, wherever the version of the configuration has them."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _settings(value)
        elif key in {"enable_cdi", "cdi_spec_dirs"}:
            yield key, value
