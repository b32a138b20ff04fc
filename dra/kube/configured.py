"""Connection pool that is authenticated by a kubeconfig.

``kubernetes.config`` brings kubeconfig parsing, client certificates, exec credentials and the
renewal of tokens; ``kubernetes.client.ApiClient`` brings TLS, proxies and the urllib3 pool. Both
are imported without a single typed model: those cost a daemon 60-80 MiB and drop fields that they
do not know.
"""

from __future__ import annotations

import logging
import re
import threading
import time
import warnings
from collections.abc import Callable

import urllib3
from kubernetes.client import ApiClient, Configuration
from kubernetes.config import ConfigException, load_kube_config

from dra.kube.errors import KubeConfigError

_log = logging.getLogger(__name__)

_GOOD_SECONDS = 1.0
"""Time for which credentials are used again: asking for them takes as long as a request, and
``kubernetes.config`` renews them minutes before they expire."""


class ConfiguredConnection:
    """The pool, the server's base URL and the credentials of one cluster. Thread-safe."""

    def __init__(self, configuration: Configuration, now: Callable[[], float]) -> None:
        self._configuration = configuration
        self._now = now
        self._renewing = threading.Lock()
        self._headers: dict[str, str] = {}
        self._good_until = float("-inf")
        self.host: str = str(configuration.host).rstrip("/")
        self.pool: urllib3.PoolManager = ApiClient(configuration).rest_client.pool_manager
        if self.host.startswith("https:") and not configuration.verify_ssl:
            _warn_once_of(self.host)

    def credentials(self) -> dict[str, str]:
        """Authentication headers, renewed first when they have expired.

        Raises:
            KubeConfigError: the token file or the exec credential plugin failed.
        """
        # An exec plugin may run for a second: once is enough for all threads.
        with self._renewing:
            if self._now() >= self._good_until:
                self._headers = self._ask()
                self._good_until = self._now() + _GOOD_SECONDS
            return dict(self._headers)

    def _ask(self) -> dict[str, str]:
        try:
            settings = self._configuration.auth_settings()
        except (ConfigException, OSError) as error:
            raise KubeConfigError(f"cannot renew the credentials for {self.host}: {error}") from (
                error
            )
        bearer = settings.get("BearerToken")
        return {"authorization": str(bearer["value"]).strip()} if bearer else {}

    def close(self) -> None:
        """Close idle connections; running requests finish."""
        self.pool.clear()


def open_connection(
    path: str, *, pool_size: int, now: Callable[[], float] = time.monotonic
) -> ConfiguredConnection:
    """Connect with a kubeconfig, or with several whose paths are joined by a colon.

    Nothing is sent yet. ``now`` gives monotonic seconds.

    Raises:
        KubeConfigError: nothing usable was found; the message names where it was looked for.
    """
    configuration = Configuration()
    configuration.connection_pool_maxsize = pool_size
    configuration.keep_alive = True
    configuration.retries = False
    try:
        load_kube_config(  # type: ignore[no-untyped-call]
            path, client_configuration=configuration, persist_config=False
        )
        return ConfiguredConnection(configuration, now)
    # A kubeconfig is anyone's YAML: what the loader trips over has no common base class.
    except Exception as error:
        raise KubeConfigError(
            f"kubeconfig {path}: {error}; give a kubeconfig with --kubeconfig or KUBECONFIG, "
            "or run in a pod with a service account"
        ) from error


def _warn_once_of(server: str) -> None:
    """Say in the log that a server is not verified, instead of urllib3 at each request."""
    _log.warning(
        "the API server's certificate is not verified: whoever answers at its address is believed,"
        " and gets the credentials; give certificate-authority in the kubeconfig instead of"
        " insecure-skip-tls-verify",
        extra={"server": server},
    )
    warnings.filterwarnings(
        "ignore",
        message=f".*{re.escape(urllib3.util.parse_url(server).host or '')}",
        category=urllib3.exceptions.InsecureRequestWarning,
    )
