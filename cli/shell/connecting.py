"""Connection pool that is authenticated by a kubeconfig's access."""

from __future__ import annotations

import base64
import json
import os
import ssl
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec
import urllib3

from cli.shell.exits import CliError, Exit
from cli.shell.kubeconfig import Access
from cli.shell.output import harmless
from dra.common.resources import Obj
from dra.kube.http import HttpClient


class DirectConnection:
    """A connection (dra.kube.connection) made without the kubernetes package.

    A credential plugin may have its user log in, and takes as long as that does unless
    ``login_seconds`` are given.
    """

    def __init__(self, access: Access, *, login_seconds: float | None = None) -> None:
        if access.exec is not None:
            access = run_exec(access, access.exec, seconds=login_seconds)
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


class HarmlessClient(HttpClient):
    """Client whose answers hold nothing that a terminal would obey, whoever wrote them."""

    def call(self, *args: Any, **kwargs: Any) -> Obj:
        """One answer."""
        found: Obj = _harmless(super().call(*args, **kwargs))
        return found

    def item(self, raw: msgspec.Raw) -> Obj:
        """One item of a list."""
        found: Obj = _harmless(super().item(raw))
        return found


def _harmless(found: Any) -> Any:
    if isinstance(found, str):
        return found if found.isascii() and found.isprintable() else harmless(found)
    if isinstance(found, dict):
        return {_harmless(key): _harmless(value) for key, value in found.items()}
    return [*map(_harmless, found)] if isinstance(found, list) else found


def run_exec(access: Access, plugin: Mapping[str, Any], *, seconds: float | None = None) -> Access:
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
        raise CliError(Exit.UNREACHABLE, f"{what} is not installed: {hint}") from error
    except (OSError, subprocess.SubprocessError) as error:
        raise CliError(Exit.UNREACHABLE, f"{what} failed: {error}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CliError(Exit.UNREACHABLE, f"{what} gave no ExecCredential: {error!r}") from error


def _pool(access: Access) -> urllib3.PoolManager:
    options: dict[str, Any] = {"num_pools": 2, "maxsize": 4}
    if access.server.startswith("https:"):
        options["ssl_context"] = _context(access)
        if access.server_name:
            options |= {
                "server_hostname": access.server_name,
                "assert_hostname": access.server_name,
            }
        if access.insecure:
            urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)
            options |= {"cert_reqs": ssl.CERT_NONE, "assert_hostname": False}
    proxy = access.proxy or _proxy_of(access.server)
    if proxy:
        return urllib3.ProxyManager(proxy, **options)
    return urllib3.PoolManager(**options)


def _proxy_of(server: str) -> str:
    """Proxy of a server by HTTPS_PROXY, HTTP_PROXY and NO_PROXY."""
    if not any(name.lower() in ("https_proxy", "http_proxy") for name in os.environ):
        return ""
    from urllib.request import getproxies, proxy_bypass  # noqa: PLC0415 - rarely needed

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
        raise CliError(
            Exit.UNREACHABLE, f"{access.source}: a certificate cannot be used: {error}"
        ) from error
    return context
