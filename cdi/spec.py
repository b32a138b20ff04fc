"""CDI specs as values, and as the mapping that container runtimes read.

Source of every field and rule: the Container Device Interface specification (SPEC.md) and its
schema. Only what a GPU needs is modelled: device nodes, bind mounts, hooks, groups and environment.
"""

from __future__ import annotations

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
    {
        "prestart",
        "createRuntime",
        CREATE_CONTAINER,
        "startContainer",
        "poststart",
        "poststop",
    }
)


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


def minimum_version(spec: Spec) -> str:
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


def encode(spec: Spec, common: object = None) -> dict[str, Any]:
    """The spec as a mapping in the words of the specification.

    ``common`` stands there for its common edits, if those are encoded already.
    """
    encoded: dict[str, Any] = {
        "cdiVersion": minimum_version(spec),
        "kind": spec.kind,
        "devices": [
            {"name": d.name, "containerEdits": encode_edits(d.edits)} for d in spec.devices
        ],
    }
    if spec.common != Edits():
        encoded["containerEdits"] = common or encode_edits(spec.common)
    return encoded


def encode_edits(edits: Edits) -> dict[str, Any]:
    """Edits as a mapping in the words of the specification."""
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
