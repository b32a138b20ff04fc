"""kubeconfig files as kubectl reads them, and the connection that each stands for.

Several files are merged, and the first mention of a name wins. Own code, because the kubernetes
package takes longer to import than a command takes to answer.
"""

from __future__ import annotations

import base64
import json
import os
import ssl
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.request import getproxies, proxy_bypass

import urllib3

from cli.exits import CliError, Exit
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


class Connection:
    """The connection (dra.kube.connection) that an access stands for.

    A credential plugin may have its user log in, and takes as long as that does unless
    ``login_seconds`` are given.
    """

    def __init__(self, access: Access, *, login_seconds: float | None = None) -> None:
        if access.exec is not None:
            access = _log_in(access, access.exec, seconds=login_seconds)
        self.host = access.server
        self.pool = _pool(access)
        self._headers: dict[str, str] = {}
        if access.token:
            self._headers = {"authorization": f"Bearer {access.token}"}
        elif access.basic is not None:
            encoded = base64.b64encode(":".join(access.basic).encode()).decode()
            self._headers = {"authorization": f"Basic {encoded}"}

    def credentials(self) -> dict[str, str]:
        """Authentication headers. They do not expire within the life of a command."""
        return self._headers

    def close(self) -> None:
        """Close idle connections."""
        self.pool.clear()


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
    merged: dict[str, dict[str, Any]] = {"clusters": {}, "users": {}, "contexts": {}}
    current = [_merge(merged, file) for file in present]
    wanted = context or next(filter(None, current), "")
    return _choose(merged, wanted, ", ".join(map(str, present)))


def _merge(merged: dict[str, dict[str, Any]], file: Path) -> str:
    """Add the entries of a file that no file before it has; returns its current context."""
    import yaml  # noqa: PLC0415 - one command line in two needs no YAML

    try:
        loaded = yaml.safe_load(file.read_text()) or {}
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise _unusable(f"kubeconfig {file} cannot be read: {error}") from error
    if not isinstance(loaded, dict):
        raise _unusable(f"kubeconfig {file} is no mapping")
    for key, known in merged.items():
        kind, entries = key.removesuffix("s"), loaded.get(key) or []
        if not isinstance(entries, list):
            raise _unusable(f"kubeconfig {file}: {key} is no list")
        for entry in entries:
            if not isinstance(entry, dict) or "name" not in entry:
                raise _unusable(f"kubeconfig {file}: an entry of {key} has no name")
            content = entry.get(kind) or {}
            if not isinstance(content, dict):
                raise _unusable(f"kubeconfig {file}: {kind} {entry['name']} is no mapping")
            known.setdefault(str(entry["name"]), {**content, "_folder": file.parent})
    return str(loaded.get("current-context") or "")


def _choose(merged: Mapping[str, dict[str, Any]], name: str, source: str) -> Access:
    if not name:
        raise _unusable(f"{source} has no current-context; name one with --context")
    context = merged["contexts"].get(name)
    if context is None:
        have = ", ".join(sorted(merged["contexts"])) or "none"
        raise _unusable(f"{source} has no context {name!r}; there are: {have}")
    cluster = merged["clusters"].get(str(context.get("cluster")))
    if cluster is None or not cluster.get("server"):
        raise _unusable(f"{source}: context {name!r} names no cluster with a server")
    user: dict[str, Any] = {}
    if context.get("user"):
        if str(context["user"]) not in merged["users"]:
            raise _unusable(f"{source}: context {name!r} names an unknown user {context['user']!r}")
        user = merged["users"][str(context["user"])]
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


def _log_in(access: Access, plugin: Mapping[str, Any], *, seconds: float | None) -> Access:
    """``access`` with what a credential plugin gives (client.authentication.k8s.io).

    Raises:
        CliError: it is missing, fails, or its answer is no ExecCredential.
    """
    command = [str(plugin["command"]), *(str(a) for a in plugin.get("args") or ())]
    given = {str(e["name"]): str(e["value"]) for e in plugin.get("env") or ()}
    info = {
        "apiVersion": plugin.get("apiVersion") or "client.authentication.k8s.io/v1",
        "kind": "ExecCredential",
        "spec": {"interactive": sys.stdin.isatty()},
    }
    environ = {**os.environ, **given, "KUBERNETES_EXEC_INFO": json.dumps(info)}
    what = f"{access.source}: credential plugin {command[0]}"
    try:
        ended = subprocess.run(  # noqa: S603 - the user's own kubeconfig names it
            command, env=environ, stdout=subprocess.PIPE, check=True, timeout=seconds
        )
        status = json.loads(ended.stdout)["status"]
        return replace(
            access,
            token=str(status.get("token") or ""),
            certificate=str(status.get("clientCertificateData") or access.certificate),
            key=str(status.get("clientKeyData") or access.key),
        )
    except FileNotFoundError as error:
        hint = plugin.get("installHint") or "install it, or use another context"
        raise _unusable(f"{what} is not installed: {hint}") from error
    except (OSError, subprocess.SubprocessError) as error:
        raise _unusable(f"{what} failed: {error}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _unusable(f"{what} gave no ExecCredential: {error!r}") from error


def _pool(access: Access) -> urllib3.PoolManager:
    options: dict[str, Any] = {"num_pools": 2, "maxsize": 4}
    if access.server.startswith("https:"):
        options["ssl_context"] = _context(access)
        if access.server_name:
            names = ("server_hostname", "assert_hostname")
            options |= dict.fromkeys(names, access.server_name)
        if access.insecure:
            urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)
            options |= {"cert_reqs": ssl.CERT_NONE, "assert_hostname": False}
    proxy = access.proxy or _proxy_of(access.server)
    if proxy:
        return urllib3.ProxyManager(proxy, **options)
    return urllib3.PoolManager(**options)


def _proxy_of(server: str) -> str:
    """Proxy of a server by HTTPS_PROXY, HTTP_PROXY and NO_PROXY."""
    target = urllib3.util.parse_url(server)
    if proxy_bypass(target.netloc or ""):
        return ""
    return getproxies().get(target.scheme or "", "")


def _context(access: Access) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cadata=access.ca or None)
        if access.insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if access.certificate and access.key:
            # OpenSSL takes the pair from a file only.
            with tempfile.NamedTemporaryFile("w", suffix=".pem") as pair:
                pair.write(f"{access.certificate.strip()}\n{access.key}")
                pair.flush()
                context.load_cert_chain(pair.name)
    except (ssl.SSLError, OSError, ValueError) as error:
        raise _unusable(f"{access.source}: a certificate cannot be used: {error}") from error
    return context


def _unusable(message: str) -> CliError:
    return CliError(Exit.UNREACHABLE, message)
