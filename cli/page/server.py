"""The page over HTTP, on loopback: three files for anybody, data for whoever has the token.

The token is sent in a header, which no other page can make a browser send, so reaching the port
alone gives nobody data. Requests under a name that is not the server's own are refused: otherwise a
foreign page whose name was made to lead here (DNS rebinding) could read the data.
"""

from __future__ import annotations

import gzip
import hmac
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from importlib.resources import files
from typing import Any
from urllib.parse import parse_qs, urlsplit

import msgspec

from cli.output import CliError
from cli.page.source import ClusterSource
from dra.kube.errors import ForbiddenError, KubeError
from dra.monitoring.server import BoundedServer, OpenConnections
from dra.sandbox.process import SandboxError

_LOOPBACK = "127.0.0.1"
_HOSTS = frozenset({_LOOPBACK, "localhost"})
"""Names under which browsers ask."""

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
_MOST = 32
"""Connections at a time: a browser opens up to six."""


class PageServer(BoundedServer):
    """Serves ``source`` on a port of loopback to whoever has ``token``; listens at once."""

    def __init__(self, port: int, source: ClusterSource, token: str) -> None:
        self.source, self.token = source, token.encode()
        places = OpenConnections(most=_MOST, most_of_peer=_MOST)
        super().__init__((_LOOPBACK, port), _Handler, places)

    @property
    def address(self) -> str:
        """The address of the page, with the token in it."""
        return f"http://{_LOOPBACK}:{self.server_port}/#token={self.token.decode()}"


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
        elif (answer := {"/data": self._data, "/why": self._why}.get(url.path)) is None:
            self._refuse(HTTPStatus.NOT_FOUND, "there are /, /data and /why")
        else:
            self._answer(answer, query)

    def _foreign(self) -> str:
        """Fault of a request that another page sent, or that names another host; empty if none."""
        host = self.headers.get("Host", "")
        name = host if host.endswith("]") else host.rpartition(":")[0] or host
        if name.lower() not in _HOSTS:
            return "this name is not served here"
        origin = self.headers.get("Origin")
        if origin is not None and origin != f"http://{host}":
            return "this is for no other page"
        if self.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin"):
            return "this is for no other page" if self.path != "/" else ""
        return ""

    def _answer(
        self, answer: Callable[[Mapping[str, str]], None], query: Mapping[str, str]
    ) -> None:
        kind, _, token = self.headers.get("Authorization", "").partition(" ")
        if kind != "Bearer" or not hmac.compare_digest(token.encode(), self.server.token):
            self._refuse(HTTPStatus.UNAUTHORIZED, "open the address that kubectl mig ui printed")
            return
        try:
            answer(query)
        except SandboxError:
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, "selectors are not evaluated: try again")
        except ForbiddenError as error:
            self._refuse(HTTPStatus.FORBIDDEN, str(error))
        except (KubeError, CliError) as error:
            self._refuse(HTTPStatus.BAD_GATEWAY, str(error))

    def _data(self, query: Mapping[str, str]) -> None:
        self._json(self.server.source.data(query.get("since", "")))

    def _why(self, query: Mapping[str, str]) -> None:
        namespace, _, name = query.get("pod", "").partition("/")
        found = self.server.source.why((namespace, name)) if namespace and name else None
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
