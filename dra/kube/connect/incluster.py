"""Connection pool that is authenticated by a pod's service account.

A daemon on every node needs no more than this; the ``kubernetes`` package, with what it imports for
kubeconfigs, costs 20 MiB.
"""

import ssl
from collections.abc import Mapping
from pathlib import Path

import urllib3

from dra.kube.errors import KubeConfigError

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
