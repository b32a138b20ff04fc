"""Connections to a cluster: by a pod's service account, or by a kubeconfig."""

from __future__ import annotations

import base64
import ssl
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol

import urllib3
import yaml

from dra.kube.errors import KubeConfigError


class Connection(Protocol):
    """The server's base URL, a pool of connections to it, and credentials. Thread-safe."""

    host: str
    pool: urllib3.PoolManager

    def credentials(self) -> dict[str, str]:
        """Authentication headers for the next request.

        Raises:
            KubeConfigError: they have expired and cannot be renewed.
        """

    def close(self) -> None:
        """Close idle connections; running requests finish."""


SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Directory where kubelet puts a pod's token and the API server's certificate authority."""


class InClusterConnection:
    """The pool, the server's base URL and the token of a service account. Thread-safe."""

    def __init__(self, host: str, directory: Path, *, pool_size: int) -> None:
        self.host = host
        self._token = directory / "token"
        authority = directory / "ca.crt"
        try:
            context = ssl.create_default_context(cafile=authority)
        except (OSError, ssl.SSLError) as error:
            raise _unusable(f"{authority}: {error}") from error
        self.pool = urllib3.PoolManager(maxsize=pool_size, ssl_context=context, retries=False)
        self.credentials()

    def credentials(self) -> dict[str, str]:
        """Authentication headers. Kubelet renews the file of the token: it is read each time.

        Raises:
            KubeConfigError: the token cannot be read, or there is none.
        """
        try:
            token = self._token.read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise _unusable(f"{self._token}: {error}") from error
        if not token:
            raise _unusable(f"{self._token} is empty")
        return {"authorization": f"Bearer {token}"}

    def close(self) -> None:
        """Close idle connections; running requests finish."""
        self.pool.clear()


def open_in_cluster(
    environ: Mapping[str, str], directory: Path, *, pool_size: int
) -> InClusterConnection | None:
    """Connect as the pod that ``environ`` says this is; None when it says nothing of a cluster.

    Raises:
        KubeConfigError: token or certificate authority in ``directory`` cannot be used.
    """
    host = server_of_pod(environ)
    return InClusterConnection(host, directory, pool_size=pool_size) if host else None


def server_of_pod(environ: Mapping[str, str]) -> str:
    """The API server's base URL that a pod's environment names; empty outside of a cluster."""
    host = environ.get("KUBERNETES_SERVICE_HOST")
    if not host:
        return ""
    port = environ.get("KUBERNETES_SERVICE_PORT") or "443"
    return f"https://{f'[{host}]' if ':' in host else host}:{port}"


def _unusable(problem: str) -> KubeConfigError:
    return KubeConfigError(
        f"the pod's service account: {problem}; does the pod set automountServiceAccountToken? "
        "Outside of a cluster give a kubeconfig with --kubeconfig"
    )


_CLUSTER = {"server", "certificate-authority", "certificate-authority-data", "extensions"}
_USER = {
    *("client-certificate", "client-certificate-data"),
    *("client-key", "client-key-data", "token", "extensions"),
}
_PROXIES = ("http_proxy", "https_proxy", "all_proxy")


class PlainConnection:
    """The pool, the server's base URL and the credentials of one cluster. Thread-safe."""

    def __init__(self, host: str, pool: urllib3.PoolManager, token: str) -> None:
        self.host = host
        self.pool = pool
        self._headers = {"authorization": f"Bearer {token}"} if token else {}

    def credentials(self) -> dict[str, str]:
        """Authentication headers, which never expire."""
        return dict(self._headers)

    def close(self) -> None:
        """Close idle connections; running requests finish."""
        self.pool.clear()


def open_plain(path: str, environ: Mapping[str, str], *, pool_size: int) -> PlainConnection | None:
    """Connect with a kubeconfig's current context; None if it is not plain or cannot be used.

    Nothing is sent yet.
    """
    if any(environ.get(name) or environ.get(name.upper()) for name in _PROXIES):
        return None
    file = Path(path).expanduser()
    try:
        cluster, user = _current(yaml.load(file.read_bytes(), Loader=yaml.CSafeLoader))
        if cluster.keys() - _CLUSTER or user.keys() - _USER:
            return None
        host = str(cluster["server"]).rstrip("/")
        context = _tls(cluster, user, file.parent) if host.startswith("https:") else None
    except (OSError, ValueError, LookupError, TypeError, AttributeError, yaml.YAMLError):
        return None
    pool = urllib3.PoolManager(maxsize=pool_size, ssl_context=context, retries=False)
    return PlainConnection(host, pool, str(user.get("token") or "").strip())


def _current(config: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The cluster and the user of the current context."""
    context = _named(config["contexts"], config["current-context"])["context"]
    cluster = _named(config["clusters"], context["cluster"])["cluster"]
    if not context.get("user"):
        return cluster, {}
    return cluster, _named(config["users"], context["user"])["user"] or {}


def _named(entries: list[Any], name: str) -> dict[str, Any]:
    found = [entry for entry in entries if entry["name"] == name]
    if len(found) != 1:
        raise LookupError(name)
    return dict(found[0])


def _tls(cluster: Mapping[str, Any], user: Mapping[str, Any], folder: Path) -> ssl.SSLContext:
    authority = _pem(cluster, "certificate-authority", folder)
    # Without an authority the system's are believed.
    context = ssl.create_default_context(cadata=authority.decode() if authority else None)
    certificate = _pem(user, "client-certificate", folder)
    if not certificate:
        return context
    with TemporaryDirectory() as private:  # the library reads keys from files alone
        files = Path(private, "certificate"), Path(private, "key")
        files[0].write_bytes(certificate)
        files[1].write_bytes(_pem(user, "client-key", folder))
        context.load_cert_chain(*files)
    return context


def _pem(fields: Mapping[str, Any], field: str, folder: Path) -> bytes:
    """The content of a field's data, else of its file; empty without either."""
    if data := fields.get(f"{field}-data"):
        return base64.b64decode(data)
    return (folder / fields[field]).read_bytes() if fields.get(field) else b""
