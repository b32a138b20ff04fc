"""HTTP/1.1 on one event loop: parse, hand to the API, write the answer or stream a watch.

One thread means that the store needs no locks and every write is a step that nothing interrupts.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import traceback
from http import HTTPStatus

import msgspec

from sim.apiserver import errors, pods
from sim.apiserver.api import Api, Response
from sim.apiserver.requests import Request, split

log = logging.getLogger(__name__)


class _DropConnectionError(Exception):
    """An injected fault: end the connection without an answer."""


async def serve_connection(
    api: Api, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Answers the requests of one connection until either side closes it."""
    try:
        while (request := await _read_request(reader, writer)) is not None:
            keep = request.headers.get("connection", "").lower() != "close"
            await _answer(api, request, reader, writer)
            if not keep:
                break
    except (ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        pass
    except _DropConnectionError:
        writer.transport.abort()
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
    body = await _read_body(reader, headers)
    return Request(method, path, query, headers, body)


async def _read_body(reader: asyncio.StreamReader, headers: dict[str, str]) -> bytes:
    if headers.get("transfer-encoding", "").lower() == "chunked":
        body = b""
        while size := int((await reader.readline()).partition(b";")[0], 16):
            body += await reader.readexactly(size)
            await reader.readexactly(2)
        await reader.readline()
        return body
    length = int(headers.get("content-length") or 0)
    return await reader.readexactly(length) if length else b""


async def _answer(
    api: Api, request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    fault = api.debug.fault_for(request)
    if fault and fault.delay:
        await asyncio.sleep(fault.delay)
    response = None if fault and not fault.after else await _complete(_respond(api, request))
    if fault and fault.drop:
        raise _DropConnectionError
    if fault and fault.status:
        response = _fault_response(fault.status, fault.message)
    response = response or await _complete(_respond(api, request))
    if response.watch is None:
        _write(writer, response, head_only=request.method == "HEAD")
        return await writer.drain()
    return await _stream(response, reader, writer)


async def _complete(response: Response) -> Response:
    """The answer with what a kubelet says, where one has to be asked."""
    if response.upstream is None:
        return response
    try:
        response.body = await pods.fetch(response.upstream)
    except errors.ApiError as refused:
        return _refusal(refused)
    return response


def _fault_response(status: int, message: str) -> Response:
    reasons = {429: "TooManyRequests", 410: "Expired", 409: "Conflict", 403: "Forbidden"}
    reason = reasons.get(status, "InternalError")
    return _refusal(errors.ApiError(status, reason, message))


def _respond(api: Api, request: Request) -> Response:
    try:
        return api.handle(request)
    except errors.ApiError as refused:
        return _refusal(refused)
    except (msgspec.DecodeError, UnicodeDecodeError) as malformed:
        return _refusal(errors.bad_request(str(malformed)))
    except Exception as failure:
        log.exception("%s %s", request.method, request.path)
        trace = traceback.format_exc(limit=-3)
        text = f"Internal error occurred: {failure}: {trace}"
        return _refusal(errors.ApiError(500, "InternalError", text))


def _refusal(refused: errors.ApiError) -> Response:
    return Response(refused.code, json.dumps(refused.status(), ensure_ascii=False).encode())


def _head(response: Response, framing: str) -> bytes:
    phrase = HTTPStatus(response.code).phrase if response.code in _KNOWN else "Unknown"
    lines = [
        f"HTTP/1.1 {response.code} {phrase}",
        f"Content-Type: {response.content_type}",
        "Cache-Control: no-cache, private",
        framing,
    ]
    lines += [f'Warning: 299 - "{_quoted(text)}"' for text in response.warnings]
    if response.code == HTTPStatus.TOO_MANY_REQUESTS:
        lines.append("Retry-After: 1")
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


_KNOWN = {status.value for status in HTTPStatus}


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


def _write(writer: asyncio.StreamWriter, response: Response, *, head_only: bool = False) -> None:
    head = _head(response, f"Content-Length: {len(response.body)}")
    writer.write(head if head_only else head + response.body)


async def _stream(
    response: Response, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Stream a watch as chunks until it ends or the client goes."""
    watch = response.watch
    if watch is None:
        return
    writer.write(_head(response, "Transfer-Encoding: chunked"))
    pump = asyncio.ensure_future(_pump(watch.lines, writer))
    gone = asyncio.ensure_future(reader.read(1))
    try:
        await asyncio.wait({pump, gone}, return_when=asyncio.FIRST_COMPLETED)
        if pump.done():
            pump.result()
            writer.write(b"0\r\n\r\n")
            await writer.drain()
    finally:
        watch.close()
        for task in (pump, gone):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, ConnectionError):
                await task
    if not pump.cancelled() and gone.done() and not gone.cancelled():
        raise ConnectionResetError


async def _pump(lines: object, writer: asyncio.StreamWriter) -> None:
    async for line in lines:  # type: ignore[attr-defined]
        writer.write(b"%x\r\n%b\r\n" % (len(line), line))
        await writer.drain()
