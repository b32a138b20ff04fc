"""A scripted API server on loopback: answers what the test wrote down, and can misbehave."""

import contextlib
import json
import socket
import ssl
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from dra.common.resources import Obj
from tests.helpers.waiting import wait_for


@dataclass(frozen=True, slots=True)
class Request:
    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: Any

    @property
    def is_watch(self) -> bool:
        return "watch" in self.query


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: "_Server"

    def handle(self) -> None:
        # The client went away, as several tests have it do.
        with contextlib.suppress(OSError):
            super().handle()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("do_"):
            return self._answer
        raise AttributeError(name)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        pass

    def _answer(self) -> None:
        url = urlsplit(self.path)
        raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        request = Request(
            self.command,
            url.path,
            dict(parse_qsl(url.query)),
            {key.lower(): value for key, value in self.headers.items()},
            json.loads(raw) if raw else None,
        )
        self.server.stub.next_answer(request)(self)

    def send_json(self, body: Any, status: int, headers: dict[str, str]) -> None:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(raw)))
        for key, value in headers.items():
            self.send_header(key, value)
        self.end_headers()
        self.wfile.write(raw)

    def chunk(self, raw: bytes) -> None:
        self.wfile.write(f"{len(raw):x}\r\n".encode() + raw + b"\r\n")
        self.wfile.flush()

    def cut_connection(self) -> None:
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)

    def hang(self) -> None:
        """Say nothing until the test is over or the client has gone."""
        self.close_connection = True
        self.connection.settimeout(0.05)
        while not self.server.stub.closing.is_set():
            try:
                if not self.connection.recv(1):
                    self.server.stub.hung_up.set()
                    return
            except TimeoutError:
                continue


Answer = Callable[[Handler], None]


def reply(body: Any, status: int = 200, **headers: str) -> Answer:
    named = {key.replace("_", "-"): value for key, value in headers.items()}
    return lambda handler: handler.send_json(body, status, named)


def refuse(code: int, reason: str = "", message: str = "no", **more: Any) -> Answer:
    headers = {"Retry_After": str(more.pop("retry_after"))} if "retry_after" in more else {}
    return reply(status_object(code, reason, message, **more), code, **headers)


def status_object(code: int, reason: str = "", message: str = "no", **more: Any) -> Obj:
    status = {"kind": "Status", "status": "Failure", "code": code, "reason": reason}
    return status | {"message": message} | more


def listing(*items: Obj, version: int = 1, token: str = "") -> Answer:
    meta = {"resourceVersion": str(version)} | ({"continue": token} if token else {})
    return reply({"kind": "List", "metadata": meta, "items": list(items)})


def events(*given: tuple[str, Obj], then: str = "end", split: int = 0) -> Answer:
    """A watch that sends events and then ends, hangs, or drops the connection."""

    def answer(handler: Handler) -> None:
        handler.send_response(200)
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        handler.wfile.flush()
        for kind, obj in given:
            line = json.dumps({"type": kind, "object": obj}).encode() + b"\n"
            size = split or len(line)
            for start in range(0, len(line), size):
                handler.chunk(line[start : start + size])
        if then == "end":
            handler.wfile.write(b"0\r\n\r\n")
        elif then == "hang":
            handler.hang()
        else:
            handler.wfile.write(b"400\r\nhalf a chunk")
            handler.cut_connection()

    return answer


def drop(handler: Handler) -> None:
    handler.cut_connection()


def hang(handler: Handler) -> None:
    handler.hang()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    stub: "Stub"

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # broken connections are what some tests are about


@dataclass
class Stub:
    """Answers in the order of the script; watches idle and other requests get 501 beyond it."""

    context: ssl.SSLContext | None = None
    calls: deque[Answer] = field(default_factory=deque)
    watches: deque[Answer] = field(default_factory=deque)
    requests: list[Request] = field(default_factory=list)
    closing: threading.Event = field(default_factory=threading.Event)
    hung_up: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._server = _Server(("127.0.0.1", 0), Handler)
        self._server.stub = self
        if self.context is not None:
            self._server.socket = self.context.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        )
        self._thread.start()

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    @property
    def url(self) -> str:
        return f"{'https' if self.context else 'http'}://127.0.0.1:{self.port}"

    def next_answer(self, request: Request) -> Answer:
        self.requests.append(request)
        script = self.watches if request.is_watch else self.calls
        if script:
            return script.popleft()
        return events(then="hang") if request.is_watch else refuse(501, message="not in the script")

    def kubeconfig(self, path: Path, *, user: Obj | None = None, cluster: Obj | None = None) -> str:
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "stub",
            "contexts": [{"name": "stub", "context": {"cluster": "stub", "user": "stub"}}],
            "clusters": [{"name": "stub", "cluster": {"server": self.url} | (cluster or {})}],
            "users": [{"name": "stub", "user": user or {"token": "secret"}}],
        }
        path.write_text(json.dumps(config))
        return str(path)

    def close(self) -> None:
        self.closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def eventually(condition: Callable[[], Any]) -> None:
    """Wait until the condition holds."""
    wait_for("this", condition)


def thing(name: str, *, version: int = 1, uid: str = "", namespace: str = "ns", **more: Any) -> Obj:
    meta = {"name": name, "uid": uid or f"uid-{name}", "resourceVersion": str(version)}
    if namespace:
        meta["namespace"] = namespace
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta} | more
