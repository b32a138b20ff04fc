"""The page over HTTP: three files for anybody, data for readers with a token.

The token is sent in a header, which no other page can make a browser send, so reaching the port
alone gives nobody data. Requests under a name that is not the server's own are refused: otherwise a
foreign page whose name was made to lead here (DNS rebinding) could read the data.
"""

from __future__ import annotations

import gzip
import logging
import ssl
from collections.abc import Callable, Collection, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import msgspec

from cli.output import CliError
from cli.page.mirrors import BusyError, Reader
from cli.page.source import ClusterSource
from dra.kube.errors import ForbiddenError, KubeError
from dra.monitoring.server import BoundedServer, OpenConnections

LOOPBACK = frozenset({"127.0.0.1", "localhost", "[::1]"})

_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src data:; frame-ancestors 'none'; base-uri 'none'; "
    "form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_FILES = {
    "/": ("page.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
}
_LONGEST = 512
"""Characters that are read of a parameter: a name of Kubernetes has 253."""
_LARGE = 2**16
"""Bytes from which an answer is compressed: what a thousand nodes show is megabytes."""
_STALL_SECONDS = 10.0
_MOST, _MOST_OF_PEER = 64, 32
"""Connections at a time: a browser opens up to six."""

_log = logging.getLogger(__name__)


class PageServer(BoundedServer):
    """Serves ``source`` on ``address``: host (empty for all) and port; listens at once.

    ``hosts``: names under which browsers may ask. ``tls``: folder with ``tls.crt`` and ``tls.key``;
    with it only TLS is served, and files that are replaced are read again.
    """

    def __init__(
        self,
        address: tuple[str, int],
        source: ClusterSource,
        *,
        hosts: Collection[str] = LOOPBACK,
        tls: Path | None = None,
    ) -> None:
        self.source, self.hosts = source, hosts
        self.secure = tls is not None
        context: ssl.SSLContext | None = None
        if tls is not None:
            self._tls, self._loaded = tls, 0.0
            context = self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.minimum_version = ssl.TLSVersion.TLSv1_2
            self._load()
        places = OpenConnections(most=_MOST, most_of_peer=_MOST_OF_PEER)
        super().__init__(address, _Handler, places, tls=context)

    def _load(self) -> None:
        certificate, key = self._tls / "tls.crt", self._tls / "tls.key"
        changed = certificate.stat().st_mtime
        if changed != self._loaded:
            self._context.load_cert_chain(certificate, key)
            self._loaded = changed

    def service_actions(self) -> None:
        """Load a new certificate; called twice a second."""
        if self.secure:
            try:
                self._load()
            except OSError as error:  # replaced in part: the old one serves until the next time
                _log.warning("the certificate cannot be read: %s", error)


class _Handler(BaseHTTPRequestHandler):
    server: PageServer
    timeout = _STALL_SECONDS
    server_version, sys_version = "mig", ""

    def do_GET(self) -> None:
        try:
            url = urlsplit(self.path)
            given = parse_qs(url.query, max_num_fields=8)
        except ValueError:
            self._refuse(HTTPStatus.BAD_REQUEST, "this is no address of ours")
            return
        query = {key: values[0][:_LONGEST] for key, values in given.items()}
        if problem := self._foreign():
            self._refuse(HTTPStatus.FORBIDDEN, problem)
        elif url.path in _FILES:
            name, content = _FILES[url.path]
            self._send(HTTPStatus.OK, (files("cli.page") / "static" / name).read_bytes(), content)
        elif url.path == "/healthz":
            self._send(HTTPStatus.OK, b"ok\n", "text/plain")
        elif (answer := {"/data": self._data, "/why": self._why}.get(url.path)) is None:
            self._refuse(HTTPStatus.NOT_FOUND, "there are /, /data and /why")
        else:
            self._answer(answer, query)

    def _foreign(self) -> str:
        """Fault of a request that another page sent, or that names another host; empty if none."""
        host = self.headers.get("Host", "")
        name = host if host.endswith("]") else host.rpartition(":")[0] or host
        if name.lower() not in self.server.hosts:
            return "this name is not served here"
        origin = self.headers.get("Origin")
        if origin is not None and origin != f"http{'s' if self.server.secure else ''}://{host}":
            return "this is for no other page"
        if self.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin"):
            return "this is for no other page" if self.path != "/" else ""
        return ""

    def _answer(
        self, answer: Callable[[Reader, Mapping[str, str]], None], query: Mapping[str, str]
    ) -> None:
        kind, _, token = self.headers.get("Authorization", "").partition(" ")
        try:
            reader = self.server.source.reader(token) if kind == "Bearer" and token else None
            if reader is None:
                self._refuse(HTTPStatus.UNAUTHORIZED, "a token is needed")
                return
            answer(reader, query)
        except BusyError:
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, "too many ask: try again")
        except ForbiddenError as error:
            self._refuse(HTTPStatus.FORBIDDEN, str(error))
        except (KubeError, CliError) as error:
            self._refuse(HTTPStatus.BAD_GATEWAY, str(error))

    def _data(self, reader: Reader, query: Mapping[str, str]) -> None:
        self._json(
            self.server.source.data(reader, query.get("since", ""), query.get("namespace", ""))
        )

    def _why(self, reader: Reader, query: Mapping[str, str]) -> None:
        namespace, _, name = query.get("pod", "").partition("/")
        found = self.server.source.why(reader, (namespace, name)) if namespace and name else None
        if found is None:
            self._refuse(HTTPStatus.NOT_FOUND, "there is no such pod that has not ended")
        else:
            self._json(found)

    def _json(self, content: Mapping[str, Any]) -> None:
        self._send(HTTPStatus.OK, msgspec.json.encode(content), "application/json")

    def _refuse(self, status: HTTPStatus, text: str) -> None:
        self._send(status, f"{text[:_LONGEST]}\n".encode(), "text/plain; charset=utf-8")

    def _send(self, status: HTTPStatus, body: bytes, content: str) -> None:
        self.send_response(status)
        if len(body) > _LARGE and "gzip" in self.headers.get("Accept-Encoding", ""):
            body = gzip.compress(body, 1)
            self.send_header("Content-Encoding", "gzip")
        self.send_header("Content-Type", content)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def end_headers(self) -> None:
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        super().end_headers()

    def log_message(self, *_: Any) -> None:
        """Log nothing: a browser asks every two seconds."""
