"""The logs of containers: what a simulated one was given, served as kubelet serves logs.

No command runs in a simulated container, and its log says so first.
"""

from __future__ import annotations

import shlex
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote

FindLog = Callable[[str, str, str], str]
"""Namespace, pod and container to the log; raises LookupError that says why there is none."""

_PREFIX = "/containerLogs/"
_PARTS = 3


def log_text(view: Mapping[str, Any]) -> str:
    """Text of the log of a container, of which ``container_view`` told."""
    command = shlex.join(view["command"]) or f"the command of image {view['image']}"
    lines = [f"simulated: no program runs here, not {command}. The container was given:"]
    lines += [f"device {d['path']} {d['major']}:{d['minor']}" for d in view["devices"]]
    places = Counter(str(Path(m["containerPath"]).parent) for m in view["mounts"])
    lines += [f"mounts {number} below {place}" for place, number in sorted(places.items())]
    lines += [f"env    {name}={value}" for name, value in view["env"].items()]
    lines += [f"CDI    {each}" for each in view["cdiDevices"]]
    return "\n".join(lines if len(lines) > 1 else [*lines, "nothing"]) + "\n"


class LogServer:
    """Serves ``/containerLogs/<namespace>/<pod>/<container>`` on a port of loopback."""

    def __init__(self, find: FindLog) -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                status, text = _answer(find, self.path)
                self.send_response(status)
                self.send_header("Content-Type", "text/plain")
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's
                """Says nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="logs", kwargs={"poll_interval": 0.1}
        )

    @property
    def port(self) -> int:
        """Port on which the server listens."""
        return self._server.server_port

    def start(self) -> None:
        """Begins to serve."""
        self._thread.start()

    def stop(self) -> None:
        """Stops and gives the port back."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()


def _answer(find: FindLog, path: str) -> tuple[HTTPStatus, str]:
    parts = [unquote(part) for part in path.removeprefix(_PREFIX).split("/")]
    if not path.startswith(_PREFIX) or len(parts) != _PARTS:
        return HTTPStatus.NOT_FOUND, "page not found\n"
    try:
        return HTTPStatus.OK, find(*parts)
    except LookupError as error:
        return HTTPStatus.BAD_REQUEST, f"{error.args[0]}\n"
