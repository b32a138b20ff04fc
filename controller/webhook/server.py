"""HTTPS server that the API server calls; its certificate is exchanged while it serves."""

from __future__ import annotations

import json
import logging
import os
import ssl
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import Any

from controller.webhook.certificates import Served
from controller.webhook.review import review_config, rewrite_limits
from dra.monitoring.server import BoundedServer, OpenConnections

_log = logging.getLogger(__name__)

PATH = "/validate"
MUTATING_PATH = "/mutate"
HEALTH = "/healthz"

_MOST_BYTES = 4 * 1024 * 1024
"""Upper bound on a request's body: more than the API server stores of one object.

A review holds at most two objects.
"""

_IDLE_SECONDS = 30.0
_MOST, _MOST_OF_PEER = 256, 64
"""Upper bounds on connections, in all and of one peer: each awaited review takes one."""


class WebhookServer(BoundedServer):
    """The webhooks' server. Listens at once; connections fail before the first certificate.

    Args:
        address: host, or empty for all addresses, and port.
        driver: name of the driver whose configuration is reviewed.
    """

    def __init__(self, address: tuple[str, int], *, driver: str) -> None:
        self.driver = driver
        self.ready = threading.Event()
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.minimum_version = ssl.TLSVersion.TLSv1_2
        places = OpenConnections(most=_MOST, most_of_peer=_MOST_OF_PEER)
        super().__init__(address, _Handler, places, tls=self._context)

    def serve(self, served: Served) -> None:
        # ssl reads certificates from files only; this one is in memory, so no disk has the key.
        descriptor = os.memfd_create("webhook")
        try:
            with os.fdopen(descriptor, "wb", closefd=False) as file:
                file.write(served.certificate + served.key)
            self._context.load_cert_chain(f"/proc/self/fd/{descriptor}")
        finally:
            os.close(descriptor)
        self.ready.set()


class _Handler(BaseHTTPRequestHandler):
    server: WebhookServer
    timeout = _IDLE_SECONDS
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if self.path == HEALTH:
            self._send(HTTPStatus.OK, b"ok", "text/plain")
        else:
            self._send(HTTPStatus.NOT_FOUND, b"not found", "text/plain")

    def do_POST(self) -> None:
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or int(length) > _MOST_BYTES:
            self.close_connection = True
            self._send(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, b"no length, or too much", "text/plain")
            return
        body = self.rfile.read(int(length))
        path = self.path.partition("?")[0]
        if path not in (PATH, MUTATING_PATH):
            self._send(HTTPStatus.NOT_FOUND, b"not found", "text/plain")
            return
        try:
            review = json.loads(body)
            review = review if isinstance(review, dict) else {}
            if path == MUTATING_PATH:
                reply = rewrite_limits(review)
            else:
                reply = review_config(review, driver=self.server.driver)
        except ValueError as error:
            self._send(HTTPStatus.BAD_REQUEST, str(error).encode(), "text/plain")
            return
        if not reply["response"]["allowed"]:
            _log.info("refused: %s", reply["response"]["status"]["message"])
        self._send(HTTPStatus.OK, json.dumps(reply).encode(), "application/json")

    def _send(self, status: HTTPStatus, body: bytes, content: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Log nothing: otherwise there would be a line for each new claim."""
