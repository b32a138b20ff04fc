"""A registry of OCI artefacts on loopback, in memory, with what Helm uses of their API."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit


class Registry(ThreadingHTTPServer):
    """A registry that keeps each blob and manifest by its path, a manifest also by its digest."""

    daemon_threads = True

    def __init__(self) -> None:
        self.stored: dict[str, tuple[str, bytes]] = {}
        super().__init__(("127.0.0.1", 0), _Handler)

    def store(self, path: str, kind: str, content: bytes) -> str:
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        self.stored[path] = self.stored[f"{path.rpartition('/')[0]}/{digest}"] = kind, content
        return digest


@contextmanager
def running() -> Iterator[Registry]:
    with Registry() as registry:
        thread = threading.Thread(target=registry.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield registry
        finally:
            registry.shutdown()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Registry

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = urlsplit(self.path).path
        if path == "/v2/":
            self._answer(HTTPStatus.OK)
        elif path in self.server.stored:
            kind, content = self.server.stored[path]
            digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
            headers = {"Content-Type": kind, "Docker-Content-Digest": digest}
            self._answer(HTTPStatus.OK, content, headers)
        else:
            self._answer(HTTPStatus.NOT_FOUND)

    def do_POST(self) -> None:
        location = f"{urlsplit(self.path).path}one"
        self._answer(HTTPStatus.ACCEPTED, headers={"Location": location})

    def do_PUT(self) -> None:
        url = urlsplit(self.path)
        content = self.rfile.read(int(self.headers["Content-Length"]))
        path = url.path
        asked = parse_qs(url.query).get("digest")
        if asked:
            path = f"{url.path.partition('/uploads/')[0]}/{asked[0]}"
        digest = self.server.store(path, self.headers["Content-Type"], content)
        right = asked in (None, [digest])
        status = HTTPStatus.CREATED if right else HTTPStatus.BAD_REQUEST
        self._answer(status, headers={"Location": path})

    def _answer(
        self, status: HTTPStatus, content: bytes = b"", headers: dict[str, str] | None = None
    ) -> None:
        self.send_response(status)
        for name, value in {**(headers or {}), "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base's name
        pass
