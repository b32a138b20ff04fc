"""One HTTP/1.1 request and its whole answer, on a connection of urllib3's.

Most requests are small, and urllib3 spends five times as long on one as the exchange itself takes:
on parsing the URL again, on headers as e-mails have them, on an object for every layer. It still
makes and keeps the connections, through proxies and with TLS as it was configured.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from urllib3 import HTTPConnectionPool, HTTPSConnectionPool, PoolManager
from urllib3.exceptions import ProtocolError

_HEAD_BYTES = 1 << 16
_READ_SIZE = 1 << 16
_INTERIM = range(100, 200)
_WITHOUT_BODY = (204, 304)


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back; ``headers`` by their names in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Wire:
    """The way to one server. Thread-safe; ``manager`` has made no connection yet."""

    def __init__(self, manager: PoolManager, url: str) -> None:
        manager.pool_classes_by_scheme = {"http": _Pool, "https": _SecurePool}
        pool = manager.connection_from_url(url)
        if not isinstance(pool, _Pool):
            raise TypeError(f"connections to {url} were made before")
        self._pool = pool
        parts = urlsplit(url)
        self._headers = {"Host": parts.netloc, "Accept-Encoding": "identity"}
        self._prefix = parts.path.rstrip("/")
        if pool.proxy is not None and pool.scheme == "http":  # not a tunnel: it wants the whole URL
            self._headers |= pool.proxy_headers
            self._prefix = url.rstrip("/")

    def exchange(
        self, method: str, target: str, headers: Mapping[str, str], *, body: bytes, seconds: float
    ) -> Answer:
        """Send a request for ``target``, a path with its query, and read the answer to its end.

        Connecting may take ``seconds``, and so may every wait for data.

        Raises:
            ProtocolError: the connection ended early, or what came is no HTTP/1.1.
            HTTPError: urllib3 could not connect.
            OSError: the connection failed, or nothing came in time.
        """
        given = {**self._headers, **headers}
        if body:
            given["Content-Length"] = str(len(body))
        first = f"{method} {self._prefix}{target} HTTP/1.1"
        lines = [first, *(f"{name}: {value}" for name, value in given.items()), "", ""]
        # In one piece, and so in one TLS record: the server wakes up once for it.
        return self._pool.exchange("\r\n".join(lines).encode("latin-1") + body, seconds)


class _Pool(HTTPConnectionPool):
    """Connections to the server, or to the proxy before it."""

    def exchange(self, request: bytes, seconds: float) -> Answer:
        connection: Any = self._get_conn()  # a BaseHTTPConnection has no ``sock``
        reusable = False
        try:
            if connection.is_closed:
                self._connect(connection, seconds)
            connection.sock.settimeout(seconds)
            connection.sock.sendall(request)
            answer, reusable = _read_answer(_Reader(connection.sock))
        except ConnectionError as error:
            raise ProtocolError(f"the connection broke: {error}") from error
        finally:
            if not reusable:
                connection.close()
            self._put_conn(connection)
        return answer

    def _connect(self, connection: Any, seconds: float) -> None:
        connection.timeout = seconds
        if self.proxy is not None and self.scheme == "https":
            self._prepare_proxy(connection)
        self._validate_conn(connection)
        if connection.is_closed:  # plain HTTP would connect when it sends
            connection.connect()


class _SecurePool(_Pool, HTTPSConnectionPool):
    """The same over TLS."""


class _Reader:
    """Bytes from a socket, in pieces of one's own choice."""

    def __init__(self, sock: Any) -> None:
        self._sock = sock
        self._buffer = bytearray()

    @property
    def is_empty(self) -> bool:
        """Whether everything that came was taken."""
        return not self._buffer

    def until(self, mark: bytes) -> bytes:
        """What comes before ``mark``, which is dropped."""
        start = 0
        while (at := self._buffer.find(mark, start)) < 0:
            start = max(0, len(self._buffer) - len(mark) + 1)
            if len(self._buffer) > _HEAD_BYTES:
                raise ProtocolError("the head of the answer is too long")
            if not self._fill():
                raise ProtocolError("the answer ended in its head")
        piece = bytes(self._buffer[:at])
        del self._buffer[: at + len(mark)]
        return piece

    def exactly(self, size: int) -> bytes:
        """``size`` bytes."""
        while len(self._buffer) < size:
            if not self._fill():
                raise ProtocolError("the answer ended in its body")
        piece = bytes(self._buffer[:size])
        del self._buffer[:size]
        return piece

    def rest(self) -> bytes:
        """Everything up to the end of the connection."""
        while self._fill():
            pass
        return bytes(self._buffer)

    def _fill(self) -> bool:
        data = self._sock.recv(_READ_SIZE)
        self._buffer += data
        return bool(data)


def _read_answer(reader: _Reader) -> tuple[Answer, bool]:
    """The answer, and whether the connection can be used again."""
    version, status, headers = _read_head(reader)
    while status in _INTERIM:
        version, status, headers = _read_head(reader)
    keeps = version == "HTTP/1.1" and headers.get("connection", "").lower() != "close"
    if status in _WITHOUT_BODY:
        return Answer(status, headers, b""), keeps and reader.is_empty
    if headers.get("transfer-encoding", "").lower() == "chunked":
        body = _read_chunks(reader)
    elif "content-length" in headers:
        body = reader.exactly(_number(headers["content-length"], base=10))
    else:
        return Answer(status, headers, reader.rest()), False
    return Answer(status, headers, body), keeps and reader.is_empty


def _read_head(reader: _Reader) -> tuple[str, int, dict[str, str]]:
    first, *lines = reader.until(b"\r\n\r\n").decode("latin-1").split("\r\n")
    version, _, rest = first.partition(" ")
    if not version.startswith("HTTP/1."):
        raise ProtocolError(f"this is no answer of HTTP/1.1: {first[:100]!r}")
    pairs = (line.partition(":") for line in lines)
    headers = {name.lower(): value.strip() for name, _, value in pairs}
    return version, _number(rest[:3], base=10), headers


def _read_chunks(reader: _Reader) -> bytes:
    chunks = []
    while size := _number(reader.until(b"\r\n").partition(b";")[0].decode("latin-1"), base=16):
        chunks.append(reader.exactly(size))
        reader.exactly(2)
    while reader.until(b"\r\n"):  # trailers
        pass
    return b"".join(chunks)


def _number(text: str, *, base: int) -> int:
    try:
        number = int(text, base)
    except ValueError:
        number = -1
    if number < 0:
        raise ProtocolError(f"this is no length, nor a status, of HTTP/1.1: {text[:100]!r}")
    return number
