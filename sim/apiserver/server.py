"""HTTP/1.1 on one event loop: parse, hand to the API, write the answer or stream a watch.

One thread means that the store needs no locks and every write is a step that nothing interrupts.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from http import HTTPStatus
from typing import TYPE_CHECKING

from sim.apiserver.api import Api, Response
from sim.apiserver.requests import Request, split

if TYPE_CHECKING:
    from sim.apiserver.lists import Watch


async def serve_connection(
    api: Api, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Answers the requests of one connection until either side closes it."""
    try:
        while (request := await _read_request(reader, writer)) is not None:
            response = await api.respond(request)
            if response.watch is not None:
                await _stream(response, response.watch, reader, writer)
            else:
                writer.write(_head(response, f"Content-Length: {len(response.body)}"))
                writer.write(response.body)
                await writer.drain()
            if request.headers.get("connection", "").lower() == "close":
                break
    except (ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        pass
    finally:
        with contextlib.suppress(ConnectionError):
            writer.close()


async def _read_request(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> Request | None:
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except asyncio.IncompleteReadError as incomplete:
        if incomplete.partial:
            raise
        return None
    first, *lines = head.rstrip("\r\n").split("\r\n")
    method, target, _ = first.split(" ", 2)
    headers = {}
    for line in lines:
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
    if headers.get("expect", "").lower() == "100-continue":
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    path, query = split(target)
    return Request(method, path, query, headers, await _read_body(reader, headers))


async def _read_body(reader: asyncio.StreamReader, headers: dict[str, str]) -> bytes:
    if headers.get("transfer-encoding", "").lower() == "chunked":
        body = b""
        while size := int((await reader.readline()).partition(b";")[0], 16):
            body += await reader.readexactly(size)
            await reader.readexactly(2)
        await reader.readline()
        return body
    return await reader.readexactly(int(headers.get("content-length") or 0))


def _head(response: Response, framing: str) -> bytes:
    lines = [
        f"HTTP/1.1 {response.code} {HTTPStatus(response.code).phrase}",
        f"Content-Type: {response.content_type}",
        "Cache-Control: no-cache, private",
        framing,
        *(f"Warning: 299 - {json.dumps(text)}" for text in response.warnings),
    ]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


async def _stream(
    response: Response, watch: Watch, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Streams a watch as chunks until it ends.

    Raises:
        ConnectionResetError: the client goes.
    """

    async def pump() -> None:
        async for line in watch.lines():
            writer.write(b"%x\r\n%b\r\n" % (len(line), line))
            await writer.drain()
        writer.write(b"0\r\n\r\n")
        await writer.drain()

    writer.write(_head(response, "Transfer-Encoding: chunked"))
    pumping = asyncio.ensure_future(pump())
    gone = asyncio.ensure_future(reader.read(1))
    try:
        await asyncio.wait({pumping, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not pumping.done():
            raise ConnectionResetError
        pumping.result()
    finally:
        watch.close()
        for task in (pumping, gone):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, ConnectionError):
                await task
