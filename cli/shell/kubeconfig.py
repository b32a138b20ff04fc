"""kubeconfig files as kubectl reads them: several are merged, the first mention of a name wins.

Own code, because the kubernetes package takes longer to import than a command takes to answer.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cli.shell.exits import CliError, Exit
from dra.kube.connection import SERVICE_ACCOUNT, server_of_pod

DEFAULT_PATH = "~/.kube/config"


@dataclass(frozen=True, slots=True)
class Access:
    """Access to one cluster as one user.

    ``ca``, ``certificate`` and ``key`` are PEM. ``exec`` is the ``exec`` entry of the user as it
    is written, with ``command`` resolved, or None. ``source`` says where all this stands.
    """

    server: str
    source: str
    namespace: str = "default"
    ca: str = ""
    insecure: bool = False
    server_name: str = ""
    proxy: str = ""
    certificate: str = ""
    key: str = ""
    token: str = ""
    basic: tuple[str, str] | None = None
    exec: Mapping[str, Any] | None = None


@dataclass(slots=True)
class _Merged:
    clusters: dict[str, dict[str, Any]] = field(default_factory=dict)
    users: dict[str, dict[str, Any]] = field(default_factory=dict)
    contexts: dict[str, dict[str, Any]] = field(default_factory=dict)
    current: str = ""


def load_access(
    path: str | None, *, context: str | None, environ: Mapping[str, str] = os.environ
) -> Access:
    """The access that ``--kubeconfig`` and ``--context`` name, or that kubectl would take.

    Raises:
        CliError: nothing usable was found, or it is not as it should be; names the file.
    """
    given = [path] if path else [p for p in environ.get("KUBECONFIG", "").split(os.pathsep) if p]
    files = [Path(p).expanduser() for p in given or [DEFAULT_PATH]]
    present = [f for f in files if f.exists()]
    if path and not present:
        raise _unusable(f"there is no kubeconfig {path}")
    if not present:
        if not given and (server := server_of_pod(environ)):
            return _in_cluster(server)
        raise _unusable(
            f"there is no kubeconfig ({', '.join(map(str, files))}); name one with --kubeconfig "
            "or KUBECONFIG"
        )
    merged = _Merged()
    for file in present:
        _merge(merged, file)
    return _choose(merged, context, ", ".join(map(str, present)))


def _merge(merged: _Merged, file: Path) -> None:
    import yaml  # noqa: PLC0415 - one command line in two needs no YAML

    try:
        loaded = yaml.safe_load(file.read_text()) or {}
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise _unusable(f"kubeconfig {file} cannot be read: {error}") from error
    if not isinstance(loaded, dict):
        raise _unusable(f"kubeconfig {file} is no mapping")
    merged.current = merged.current or str(loaded.get("current-context") or "")
    for key, kind, into in (
        ("clusters", "cluster", merged.clusters),
        ("users", "user", merged.users),
        ("contexts", "context", merged.contexts),
    ):
        entries = loaded.get(key) or []
        if not isinstance(entries, list):
            raise _unusable(f"kubeconfig {file}: {key} is no list")
        for entry in entries:
            if not isinstance(entry, dict) or "name" not in entry:
                raise _unusable(f"kubeconfig {file}: an entry of {key} has no name")
            content = entry.get(kind) or {}
            if not isinstance(content, dict):
                raise _unusable(f"kubeconfig {file}: {kind} {entry['name']} is no mapping")
            into.setdefault(str(entry["name"]), {**content, "_folder": file.parent})


def _choose(merged: _Merged, wanted: str | None, source: str) -> Access:
    name = wanted or merged.current
    if not name:
        raise _unusable(f"{source} has no current-context; name one with --context")
    context = merged.contexts.get(name)
    if context is None:
        have = ", ".join(sorted(merged.contexts)) or "none"
        raise _unusable(f"{source} has no context {name!r}; there are: {have}")
    cluster = merged.clusters.get(str(context.get("cluster")))
    if cluster is None or not cluster.get("server"):
        raise _unusable(f"{source}: context {name!r} names no cluster with a server")
    user: dict[str, Any] = {}
    if context.get("user"):
        if str(context["user"]) not in merged.users:
            raise _unusable(f"{source}: context {name!r} names an unknown user {context['user']!r}")
        user = merged.users[str(context["user"])]
    if user.get("auth-provider"):
        raise _unusable(
            f"{source}: auth-provider of user {context['user']!r} is not supported (nor by kubectl "
            "since 1.26); use an exec credential plugin"
        )
    basic = (str(user["username"]), str(user.get("password") or "")) if "username" in user else None
    return Access(
        server=str(cluster["server"]).rstrip("/"),
        source=f"{source}, context {name}",
        namespace=str(context.get("namespace") or "default"),
        ca=_pem(cluster, "certificate-authority", source),
        insecure=bool(cluster.get("insecure-skip-tls-verify")),
        server_name=str(cluster.get("tls-server-name") or ""),
        proxy=str(cluster.get("proxy-url") or ""),
        certificate=_pem(user, "client-certificate", source),
        key=_pem(user, "client-key", source),
        token=_token(user, source),
        basic=basic,
        exec=_exec(user),
    )


def _pem(entry: Mapping[str, Any], name: str, source: str) -> str:
    import base64  # noqa: PLC0415 - as above

    try:
        if entry.get(f"{name}-data"):
            return base64.b64decode(entry[f"{name}-data"], validate=True).decode()
        if entry.get(name):
            return (Path(entry["_folder"]) / str(entry[name])).read_text()
    except (OSError, ValueError, TypeError) as error:
        raise _unusable(f"{source}: {name} cannot be read: {error}") from error
    return ""


def _token(user: Mapping[str, Any], source: str) -> str:
    """``tokenFile`` takes precedence, as in kubectl."""
    if not user.get("tokenFile"):
        return str(user.get("token") or "")
    try:
        return (Path(user["_folder"]) / str(user["tokenFile"])).read_text().strip()
    except (OSError, ValueError) as error:
        raise _unusable(f"{source}: tokenFile cannot be read: {error}") from error


def _exec(user: Mapping[str, Any]) -> Mapping[str, Any] | None:
    entry = user.get("exec")
    if not isinstance(entry, dict) or not entry.get("command"):
        return None
    command = str(entry["command"])
    if "/" in command:
        command = str(Path(user["_folder"]) / command)
    return {**entry, "command": command}


def _in_cluster(server: str) -> Access:
    try:
        return Access(
            server=server,
            source="the pod's service account",
            namespace=(SERVICE_ACCOUNT / "namespace").read_text().strip(),
            ca=(SERVICE_ACCOUNT / "ca.crt").read_text(),
            token=(SERVICE_ACCOUNT / "token").read_text().strip(),
        )
    except OSError as error:
        raise _unusable(f"the pod has no usable service account: {error}") from error


def _unusable(message: str) -> CliError:
    return CliError(Exit.UNREACHABLE, message)
