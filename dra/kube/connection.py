"""Connections to one API server: TLS, proxies and credentials. urllib3 makes and keeps them."""

from __future__ import annotations

import base64
import json
import os
import re
import ssl
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any
from urllib.parse import urlsplit

import urllib3

from dra.kube.errors import KubeConfigError
from dra.kube.kubeconfig import POD_ACCOUNT, Access, unusable_account

_KEPT = 64
"""Idle connections that are kept: more than a program uses at a time, watches included."""

_GOOD_SECONDS = 1.0
"""Time for which the answer of a credential plugin is used even if it has expired."""


class Connection:
    """A pool of connections to the server, and credentials. Thread-safe.

    ``host`` is the server's base URL, ``base`` the beginning of every request's target.
    ``login_seconds`` limits the time of a credential plugin; without it there is no limit, as the
    plugin may wait for its user to log in. ``now`` returns monotonic seconds.

    Raises:
        KubeConfigError: certificates or credentials cannot be used.
    """

    def __init__(
        self,
        access: Access,
        *,
        login_seconds: float | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._login_seconds = login_seconds
        self._now = now
        self._renewing = threading.Lock()
        self._access, self._expires = access, ""
        self._asked_at = now()
        if access.exec is not None:
            self._access, self._expires = _log_in(access, access.exec, login_seconds)
        self._headers = _authorization(self._access)
        self.host = access.server
        self._manager = _manager(self._access)
        self.pool = self._manager.connection_from_url(self.host)
        # A proxy of plain HTTP has to see the whole URL.
        is_forwarded = bool(access.proxy) and access.server.startswith("http:")
        self.base = access.server if is_forwarded else urlsplit(access.server).path
        if access.token_file is not None:
            self.credentials()

    def credentials(self) -> Mapping[str, str]:
        """Authentication headers for the next request.

        Raises:
            KubeConfigError: they have expired and cannot be renewed.
        """
        if self._access.token_file is not None:
            # Kubelet renews the file of the token.
            return {"authorization": f"Bearer {_token(self._access, self._access.token_file)}"}
        if self._expires:
            # A plugin may run for a second: once is enough for all threads.
            with self._renewing:
                self._renew()
        return self._headers

    def close(self) -> None:
        """Close idle connections; running requests finish."""
        self._manager.clear()
        self.pool = self._manager.connection_from_url(self.host)

    def _renew(self) -> None:
        is_good = _is_future(self._expires) or self._now() < self._asked_at + _GOOD_SECONDS
        if is_good or self._access.exec is None:
            return
        # The certificate stays: the pool has it.
        access, self._expires = _log_in(self._access, self._access.exec, self._login_seconds)
        self._asked_at = self._now()
        self._headers = _authorization(access)


def _authorization(access: Access) -> dict[str, str]:
    if access.token:
        return {"authorization": f"Bearer {access.token}"}
    if access.basic is not None:
        encoded = base64.b64encode(":".join(access.basic).encode()).decode()
        return {"authorization": f"Basic {encoded}"}
    return {}


def _token(access: Access, file: Path) -> str:
    try:
        token = file.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise _unusable(access, f"{file}: {error}") from error
    if not token:
        raise _unusable(access, f"{file} is empty")
    return token


def _log_in(access: Access, plugin: Mapping[str, Any], seconds: float | None) -> tuple[Access, str]:
    """Run a credential plugin (client.authentication.k8s.io).

    Returns the access that it gives, and the time stamp of its end, "" without one. Raises
    KubeConfigError if the plugin fails.
    """
    command = [str(plugin["command"]), *(str(a) for a in plugin.get("args") or ())]
    may_ask = plugin.get("interactiveMode") != "Never" and sys.stdin is not None
    info: dict[str, Any] = {
        "apiVersion": plugin.get("apiVersion") or "client.authentication.k8s.io/v1",
        "kind": "ExecCredential",
        "spec": {"interactive": may_ask and sys.stdin.isatty()},
    }
    if plugin.get("provideClusterInfo"):
        info["spec"]["cluster"] = {
            "server": access.server,
            "tls-server-name": access.server_name,
            "insecure-skip-tls-verify": access.insecure,
            "certificate-authority-data": base64.b64encode(access.ca.encode()).decode(),
            "proxy-url": access.proxy,
        }
    given = {str(e["name"]): str(e["value"]) for e in plugin.get("env") or ()}
    environ = {**os.environ, **given, "KUBERNETES_EXEC_INFO": json.dumps(info)}
    what = f"{access.source}: credential plugin {command[0]}"
    try:
        ended = subprocess.run(  # noqa: S603 - the user's own kubeconfig names it
            command, env=environ, stdout=subprocess.PIPE, check=True, timeout=seconds
        )
        status = json.loads(ended.stdout)["status"]
        found = replace(
            access,
            token=str(status.get("token") or ""),
            certificate=str(status.get("clientCertificateData") or access.certificate),
            key=str(status.get("clientKeyData") or access.key),
        )
        return found, str(status.get("expirationTimestamp") or "")
    except FileNotFoundError as error:
        hint = plugin.get("installHint") or "install it, or use another context"
        raise KubeConfigError(f"{what} is not installed: {hint}") from error
    except (OSError, subprocess.SubprocessError) as error:
        raise KubeConfigError(f"{what} failed: {error}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise KubeConfigError(f"{what} gave no ExecCredential: {error!r}") from error


def _is_future(stamp: str) -> bool:
    try:
        return datetime.fromisoformat(stamp) > datetime.now(UTC)
    except (ValueError, TypeError):
        return True  # no readable time: it never ends


def _manager(access: Access) -> urllib3.PoolManager:
    options: dict[str, Any] = {"maxsize": _KEPT, "retries": False}
    if access.server.startswith("https:"):
        options["ssl_context"] = _tls(access)
        if access.server_name:
            options |= {
                "server_hostname": access.server_name,
                "assert_hostname": access.server_name,
            }
        if access.insecure:
            options |= {"cert_reqs": ssl.CERT_NONE, "assert_hostname": False}
            # KubeApi.connect warns once; urllib3 would warn at each request.
            warnings.filterwarnings(
                "ignore",
                message=f".*{re.escape(urllib3.util.parse_url(access.server).host or '')}",
                category=urllib3.exceptions.InsecureRequestWarning,
            )
    if access.proxy:
        return urllib3.ProxyManager(access.proxy, **options)
    return urllib3.PoolManager(**options)


def _tls(access: Access) -> ssl.SSLContext:
    try:
        # Without a certificate authority those of the system are trusted.
        context = ssl.create_default_context(cadata=access.ca or None)
        if access.insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if access.certificate:
            with NamedTemporaryFile("w", suffix=".pem") as pair:  # OpenSSL takes it from files only
                pair.write(f"{access.certificate.strip()}\n{access.key}")
                pair.flush()
                context.load_cert_chain(pair.name)
    except (ssl.SSLError, OSError, ValueError) as error:
        raise _unusable(access, f"a certificate (ca.crt) cannot be used: {error}") from error
    return context


def _unusable(access: Access, problem: str) -> KubeConfigError:
    if access.source == POD_ACCOUNT:
        return unusable_account(problem)
    return KubeConfigError(f"{access.source}: {problem}")
