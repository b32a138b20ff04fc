"""CDI as a container runtime reads it: ids to the edits of their specs.

Follows tags.cncf.io/container-device-interface. Written apart from the ``cdi`` package, so that the
driver's specs are read by somebody else.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from sim.kubelet.errors import ContainerError

_log = logging.getLogger(__name__)

_KIND = re.compile(r"[A-Za-z]([\w.-]*[A-Za-z0-9])?/[A-Za-z]([\w-]*[A-Za-z0-9])?")
_DEVICE = re.compile(r"[A-Za-z0-9]([\w.:-]*[A-Za-z0-9])?")
_SUFFIXES = frozenset({".json", ".yaml"})


@dataclass(frozen=True, slots=True)
class Device:
    """A device of a spec: its own edits and those that its spec makes for any of its devices."""

    spec_path: Path
    spec_edits: Mapping[str, Any]
    edits: Mapping[str, Any]


@dataclass(slots=True)
class CdiCache:
    """The specs below ``root``, read again only when a file changed. Not thread-safe."""

    root: Path
    _specs: dict[Path, tuple[tuple[int, int], dict[str, Device]]] = field(default_factory=dict)

    def resolve(self, ids: Sequence[str]) -> list[Mapping[str, Any]]:
        """The containerEdits of the devices, each spec's own before those of its first device.

        Raises:
            ContainerError: "unresolvable CDI devices ...", as a runtime says it.
        """
        devices = self._devices()
        unresolved = [i for i in ids if devices.get(i) is None]
        if unresolved:
            raise ContainerError(
                f"failed to inject CDI devices: unresolvable CDI devices {', '.join(unresolved)}"
            )
        edits: list[Mapping[str, Any]] = []
        seen: set[Path] = set()
        for each in ids:
            device = devices[each]
            if device is None:
                continue
            if device.spec_path not in seen:
                seen.add(device.spec_path)
                edits.append(device.spec_edits)
            edits.append(device.edits)
        return edits

    def _devices(self) -> dict[str, Device | None]:
        """Id to device; None for an id that two specs define, which no runtime resolves."""
        found: dict[str, Device | None] = {}
        current: dict[Path, tuple[tuple[int, int], dict[str, Device]]] = {}
        paths = sorted(self.root.iterdir()) if self.root.is_dir() else []
        for path in paths:
            if path.suffix not in _SUFFIXES or path.name.startswith("."):
                continue
            try:
                status = path.stat()
                stamp = (status.st_mtime_ns, status.st_ino)
                known = self._specs.get(path)
                devices = known[1] if known and known[0] == stamp else read_spec(path)
            except FileNotFoundError:
                continue
            except ValueError as error:
                _log.warning("%s: not a CDI spec: %s", path, error)
                continue
            current[path] = (stamp, devices)
            for name, device in devices.items():
                found[name] = None if name in found else device
        self._specs = current
        return found


def read_spec(path: Path) -> dict[str, Device]:
    """Id (``vendor/class=name``) to device.

    Raises:
        ValueError: not YAML or JSON, or not a CDI spec; says what.
        FileNotFoundError: removed in the meantime.
    """
    text = path.read_text()
    try:
        spec = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error
    if not isinstance(spec, dict) or not isinstance(spec.get("cdiVersion"), str):
        raise ValueError("cdiVersion is missing")  # noqa: TRY004 - one error for a bad file
    kind = str(spec.get("kind", ""))
    if not _KIND.fullmatch(kind):
        raise ValueError(f"kind {kind!r} is not vendor/class")
    devices: dict[str, Device] = {}
    for entry in spec.get("devices") or ():
        name = entry.get("name")
        if not isinstance(name, str) or not _DEVICE.fullmatch(name):
            raise ValueError(f"device name {name!r} is not valid")
        if f"{kind}={name}" in devices:
            raise ValueError(f"device {name} is defined twice")
        devices[f"{kind}={name}"] = Device(
            spec_path=path,
            spec_edits=spec.get("containerEdits") or {},
            edits=entry.get("containerEdits") or {},
        )
    return devices
