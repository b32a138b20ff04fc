"""Connection to a cluster, as HTTP needs it."""

from typing import Protocol

import urllib3


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
