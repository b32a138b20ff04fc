"""Excerpts of the files that the demo shows: a CDI spec and what a container sees. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from dra.common.resources import at

_SHOWN_MOUNTS = 2


def cdi_excerpt(spec: Mapping[str, Any]) -> str:
    """A CDI spec in few lines: every device node and variable, the first mounts."""
    lines = [f"kind: {spec['kind']}"]
    for device in spec["devices"]:
        lines.append(f"device {device['name']}")
        lines += _edits(device.get("containerEdits", {}))
    if common := [*_edits(spec.get("containerEdits", {}))]:
        lines += ["every device of this spec", *common]
    return "\n".join(lines)


def container_excerpt(view: Mapping[str, Any]) -> str:
    """View of a container in few lines; ``view`` is the kubelet stand-in's file."""
    edits = {
        "env": [f"{name}={value}" for name, value in view["env"].items()],
        "deviceNodes": view["devices"],
        "mounts": view["mounts"],
    }
    return "\n".join([f"container {view['name']}", *_edits(edits)])


def device_data(claim: Mapping[str, Any]) -> str:
    """``status.devices`` of a claim: each device with its condition and its data."""
    lines = []
    for device in at(claim, "status", "devices"):
        conditions = ", ".join(
            f"{c['type']}={c['status']} ({c.get('reason', '')})"
            for c in device.get("conditions", ())
        )
        lines.append(f"{device['pool']}/{device['device']}: {conditions}")
        data = device.get("data") or {}
        lines += [f"  {name}: {_value(value)}" for name, value in data.items()]
    return "\n".join(lines)


def _edits(edits: Mapping[str, Any]) -> Iterable[str]:
    for assignment in edits.get("env") or ():
        yield f"  env    {assignment}"
    for node in edits.get("deviceNodes") or ():
        numbers = f"{node.get('type', '?')} {node.get('major', '?')}:{node.get('minor', '?')}"
        yield f"  device {node['path']:<34} {numbers}"
    mounts = edits.get("mounts") or ()
    for mount in mounts[:_SHOWN_MOUNTS]:
        yield f"  mount  {mount['containerPath']}"
    if len(mounts) > _SHOWN_MOUNTS:
        yield f"  mount  ... and {len(mounts) - _SHOWN_MOUNTS} more files of the driver"


def _value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
