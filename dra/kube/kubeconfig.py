"""Access to a cluster, as a pod's service account or a kubeconfig gives it.

Several kubeconfigs are merged as kubectl does it: the first mention of a name wins. The kubernetes
package, which reads them too, costs a process 20 MiB and half a second of CPU.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dra.kube.errors import KubeConfigError

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Directory where kubelet puts a pod's token and the API server's certificate authority."""

POD_ACCOUNT = "the pod's service account"
"""Source of the access of a pod."""

_DEFAULT = "~/.kube/config"
_REMEDY = (
    "give a kubeconfig with --kubeconfig or KUBECONFIG, or run in a pod with a service account"
)
_PROXIES = ("http_proxy", "https_proxy", "all_proxy")


@dataclass(frozen=True, slots=True)
class Access:
    """Access to one cluster as one user; ``source`` names the files or account that it is from.

    ``ca``, ``certificate`` and ``key`` are PEM. ``token_file`` goes before ``token``, and is read
    for each request. ``basic`` is user name and password. ``exec`` is the user's entry of that
    name, with ``command`` resolved.
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
    token_file: Path | None = None
    basic: tuple[str, str] | None = None
    exec: Mapping[str, Any] | None = None


def pod_access(environ: Mapping[str, str], directory: Path) -> Access | None:
    """Access of this process as a pod, by its service account in ``directory``.

    None when ``environ`` names no API server, as outside of a pod.

    Raises:
        KubeConfigError: the service account's files cannot be read.
    """
    host = environ.get("KUBERNETES_SERVICE_HOST")
    if not host:
        return None
    port = environ.get("KUBERNETES_SERVICE_PORT") or "443"
    namespace = directory / "namespace"
    try:
        return Access(
            server=f"https://{f'[{host}]' if ':' in host else host}:{port}",
            source=POD_ACCOUNT,
            namespace=namespace.read_text().strip() if namespace.exists() else "default",
            ca=(directory / "ca.crt").read_text(),
            token_file=directory / "token",
        )
    except (OSError, UnicodeDecodeError) as error:
        raise unusable_account(str(error)) from error


def unusable_account(problem: str) -> KubeConfigError:
    """The error of a service account that cannot be used, with the remedy."""
    return KubeConfigError(
        f"{POD_ACCOUNT}: {problem}; does the pod set automountServiceAccountToken? "
        "Outside of a cluster give a kubeconfig with --kubeconfig"
    )


def load_access(
    path: str | None, *, context: str | None = None, environ: Mapping[str, str] = os.environ
) -> Access:
    """The access by ``path``, else by KUBECONFIG, kubectl's own file, or a pod's service account.

    ``path`` and KUBECONFIG may be several files, joined by a colon. ``context`` None is the current
    one.

    Raises:
        KubeConfigError: nothing usable was found, or it is not as it should be; names the file.
    """
    given = path or environ.get("KUBECONFIG") or _DEFAULT
    files = [Path(each).expanduser() for each in given.split(os.pathsep) if each]
    present = [file for file in files if file.exists()]
    if not present:
        if given == _DEFAULT and (pod := pod_access(environ, SERVICE_ACCOUNT)):
            return pod
        raise _unusable(f"there is no kubeconfig ({', '.join(map(str, files))})")
    merged = _Merged()
    for file in present:
        merged.add(file)
    return merged.choose(context, ", ".join(map(str, present)))


@dataclass(slots=True)
class _Merged:
    """Entries of some kubeconfigs by name, each with the folder of its file."""

    cluster: dict[str, dict[str, Any]] = field(default_factory=dict)
    user: dict[str, dict[str, Any]] = field(default_factory=dict)
    context: dict[str, dict[str, Any]] = field(default_factory=dict)
    current: str = ""

    def add(self, file: Path) -> None:
        import yaml  # noqa: PLC0415 - a pod has no kubeconfig

        try:
            loaded = yaml.load(file.read_bytes(), Loader=yaml.CSafeLoader) or {}
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            raise _unusable(f"kubeconfig {file} cannot be read: {error}") from error
        if not isinstance(loaded, dict):
            raise _unusable(f"kubeconfig {file} is no mapping")
        self.current = self.current or str(loaded.get("current-context") or "")
        for kind, into in (
            ("cluster", self.cluster),
            ("user", self.user),
            ("context", self.context),
        ):
            entries = loaded.get(f"{kind}s") or []
            if not isinstance(entries, list):
                raise _unusable(f"kubeconfig {file}: {kind}s is no list")
            for entry in entries:
                if not isinstance(entry, dict) or "name" not in entry:
                    raise _unusable(f"kubeconfig {file}: an entry of {kind}s has no name")
                content = entry.get(kind) or {}
                if not isinstance(content, dict):
                    raise _unusable(f"kubeconfig {file}: {kind} {entry['name']} is no mapping")
                into.setdefault(str(entry["name"]), {**content, "_folder": file.parent})

    def choose(self, wanted: str | None, source: str) -> Access:
        name = wanted or self.current
        if not name:
            raise _unusable(f"{source} has no current-context; name one with --context")
        context = self.context.get(name)
        if context is None:
            have = ", ".join(sorted(self.context)) or "none"
            raise _unusable(f"{source} has no context {name!r}; there are: {have}")
        cluster = self.cluster.get(str(context.get("cluster")))
        if cluster is None or not cluster.get("server"):
            raise _unusable(f"{source}: context {name!r} names no cluster with a server")
        user = self.user.get(str(context["user"])) if context.get("user") else {}
        if user is None:
            raise _unusable(f"{source}: context {name!r} names an unknown user {context['user']!r}")
        if user.get("auth-provider"):
            raise _unusable(
                f"{source}: auth-provider of user {context['user']!r} is not supported; use an "
                "exec credential plugin"
            )
        server = str(cluster["server"]).rstrip("/")
        named = "username" in user
        return Access(
            server=server,
            source=f"{source}, context {name}",
            namespace=str(context.get("namespace") or "default"),
            ca=_pem(cluster, "certificate-authority", source),
            insecure=bool(cluster.get("insecure-skip-tls-verify")),
            server_name=str(cluster.get("tls-server-name") or ""),
            proxy=str(cluster.get("proxy-url") or "") or _proxy_of(server),
            certificate=_pem(user, "client-certificate", source),
            key=_pem(user, "client-key", source),
            token=str(user.get("token") or "").strip(),
            token_file=user["_folder"] / str(user["tokenFile"]) if user.get("tokenFile") else None,
            basic=(str(user["username"]), str(user.get("password") or "")) if named else None,
            exec=_exec(user),
        )


def _pem(entry: Mapping[str, Any], name: str, source: str) -> str:
    """The content of a field's data, else of its file; empty without either."""
    try:
        if entry.get(f"{name}-data"):
            return base64.b64decode(entry[f"{name}-data"], validate=True).decode()
        if entry.get(name):
            return (Path(entry["_folder"]) / str(entry[name])).read_text()
    except (OSError, ValueError, TypeError) as error:
        raise _unusable(f"{source}: {name} cannot be read: {error}") from error
    return ""


def _exec(user: Mapping[str, Any]) -> Mapping[str, Any] | None:
    entry = user.get("exec")
    if not isinstance(entry, dict) or not entry.get("command"):
        return None
    command = str(entry["command"])
    if "/" in command:
        command = str(Path(user["_folder"]) / command)
    return {**entry, "command": command}


def _proxy_of(server: str) -> str:
    """Proxy of a server by HTTPS_PROXY, HTTP_PROXY, ALL_PROXY and NO_PROXY.

    As for kubectl a proxy without a scheme is one by http (golang.org/x/net, httpproxy).
    """
    if not any(name.lower() in _PROXIES for name in os.environ):
        return ""
    from urllib.parse import urlsplit  # noqa: PLC0415 - rarely needed
    from urllib.request import getproxies, proxy_bypass  # noqa: PLC0415

    url = urlsplit(server)
    if proxy_bypass(url.netloc):
        return ""
    proxies = getproxies()
    found = proxies.get(url.scheme) or proxies.get("all") or ""
    return found if "://" in found or not found else f"http://{found}"


def _unusable(problem: str) -> KubeConfigError:
    return KubeConfigError(f"{problem}; {_REMEDY}")
