"""Containers of the simulated runtime: CDI edits, and logs."""

from __future__ import annotations

import json
import logging
import os
import re
import shlex
import stat
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import yaml

from sim.kubelet.plugins import ContainerError

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


def resolve(root: Path, ids: Sequence[str]) -> list[Mapping[str, Any]]:
    """The containerEdits of devices of the specs below ``root``, each spec's own before the others.

    Raises:
        ContainerError: "unresolvable CDI devices ...", as a runtime says it.
    """
    devices = _devices(root)
    unresolved = [i for i in ids if devices.get(i) is None]
    if unresolved:
        raise ContainerError(
            f"failed to inject CDI devices: unresolvable CDI devices {', '.join(unresolved)}"
        )
    edits: list[Mapping[str, Any]] = []
    seen: set[Path] = set()
    for device in filter(None, map(devices.get, ids)):
        if device.spec_path not in seen:
            seen.add(device.spec_path)
            edits.append(device.spec_edits)
        edits.append(device.edits)
    return edits


def _devices(root: Path) -> dict[str, Device | None]:
    """Id to device; None for an id that two specs define, which no runtime resolves."""
    found: dict[str, Device | None] = {}
    for path in sorted(root.iterdir()) if root.is_dir() else []:
        if path.suffix not in _SUFFIXES or path.name.startswith("."):
            continue
        try:
            devices = read_spec(path)
        except FileNotFoundError:
            continue
        except ValueError as error:
            _log.warning("%s: not a CDI spec: %s", path, error)
            continue
        for name, device in devices.items():
            found[name] = None if name in found else device
    return found


def read_spec(path: Path) -> dict[str, Device]:
    """Id (``vendor/class=name``) to device.

    Raises:
        ValueError: not YAML or JSON, or not a CDI spec; says what.
        FileNotFoundError: removed in the meantime.
    """
    text = path.read_text()
    try:
        spec = json.loads(text) if path.suffix == ".json" else yaml.load(text, yaml.CSafeLoader)
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


FindLog = Callable[[str, str, str], str]
"""Namespace, pod and container to the log; raises LookupError that says why there is none."""

_PREFIX = "/containerLogs/"
_PARTS = 3


def log_text(view: Mapping[str, Any]) -> str:
    """Text of the log of a container, of which ``container_view`` told."""
    command = shlex.join(view["command"]) or f"the command of image {view['image']}"
    lines = [f"simulated: no program runs here, not {command}. The container was given:"]
    lines += [f"device {d['path']} {d['major']}:{d['minor']}" for d in view["devices"]]
    places = Counter(str(Path(m["containerPath"]).parent) for m in view["mounts"])
    lines += [f"mounts {number} below {place}" for place, number in sorted(places.items())]
    lines += [f"env    {name}={value}" for name, value in view["env"].items()]
    lines += [f"CDI    {each}" for each in view["cdiDevices"]]
    return "\n".join(lines if len(lines) > 1 else [*lines, "nothing"]) + "\n"


class LogServer:
    """Serves ``/containerLogs/<namespace>/<pod>/<container>`` on a port of loopback."""

    def __init__(self, find: FindLog) -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                status, text = _answer(find, self.path)
                self.send_response(status)
                self.send_header("Content-Type", "text/plain")
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's
                """Says nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="logs", kwargs={"poll_interval": 0.1}
        )

    @property
    def port(self) -> int:
        """Port on which the server listens."""
        return self._server.server_port

    def start(self) -> None:
        """Begins to serve."""
        self._thread.start()

    def stop(self) -> None:
        """Stops and gives the port back."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()


def _answer(find: FindLog, path: str) -> tuple[HTTPStatus, str]:
    parts = [unquote(part) for part in path.removeprefix(_PREFIX).split("/")]
    if not path.startswith(_PREFIX) or len(parts) != _PARTS:
        return HTTPStatus.NOT_FOUND, "page not found\n"
    try:
        return HTTPStatus.OK, find(*parts)
    except LookupError as error:
        return HTTPStatus.BAD_REQUEST, f"{error.args[0]}\n"
