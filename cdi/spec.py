"""CDI specs as values, and as the mapping that container runtimes read.

Source of every field and rule: the Container Device Interface specification (SPEC.md) and its
schema. Only what a GPU needs is modelled: device nodes, bind mounts and environment.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

CLAIM_CLASS = "claim"


@dataclass(frozen=True, slots=True)
class DeviceNode:
    """A device node in the container.

    ``host_path`` is empty where it equals ``path``. Without ``major`` the runtime looks the node up
    on the host, and it has to exist there; with it, it has not. ``file_mode`` are permission bits.
    """

    path: str
    host_path: str = ""
    major: int | None = None
    minor: int | None = None
    file_mode: int | None = None
    permissions: str = "rw"


@dataclass(frozen=True, slots=True)
class Mount:
    """A read-only bind mount of a file of the host."""

    host_path: str
    container_path: str


@dataclass(frozen=True, slots=True)
class Edits:
    """What is changed in a container: ``env`` are ``NAME=value`` strings."""

    env: tuple[str, ...] = ()
    nodes: tuple[DeviceNode, ...] = ()
    mounts: tuple[Mount, ...] = ()


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


def device_id(claim_uid: str, device: str) -> str:
    """The CDI name of a claim's device. Unique per claim, so that no runtime's cache is stale."""
    return f"{claim_uid}-{device}"


def minimum_version(spec: Spec) -> str:
    """The oldest version of the specification that knows everything in ``spec``.

    0.5.0 allows device names that begin with a digit (claim UIDs do) and ``hostPath`` of nodes.
    """
    edits = [spec.common, *(d.edits for d in spec.devices)]
    digits = any(d.name[:1].isdigit() for d in spec.devices)
    if digits or any(n.host_path for e in edits for n in e.nodes):
        return "0.5.0"
    return "0.3.0"


def encode(spec: Spec) -> dict[str, Any]:
    """The spec as a mapping in the words of the specification."""
    encoded: dict[str, Any] = {
        "cdiVersion": minimum_version(spec),
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
    return encoded


def _mount(mount: Mount) -> dict[str, Any]:
    return {
        "hostPath": mount.host_path,
        "containerPath": mount.container_path,
        "options": ["ro", "nosuid", "nodev", "rbind", "rprivate"],
    }
