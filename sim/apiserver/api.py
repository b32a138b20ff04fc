"""The API between requests and responses: discovery, the verbs, watches. It knows no sockets."""

from __future__ import annotations

import json
import logging
import traceback
from collections import Counter, OrderedDict, defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import msgspec

from sim.apiserver import deletion, discovery, errors, lists, pods, scale
from sim.apiserver.requests import resolve
from sim.apiserver.tables import Form

if TYPE_CHECKING:
    from collections.abc import Callable

    from sim.apiserver.registry import Registry
    from sim.apiserver.requests import Request, Target
    from sim.apiserver.resources import Catalogue
    from sim.apiserver.store import Record


log = logging.getLogger(__name__)
_encode = msgspec.json.Encoder().encode
_JSON = "application/json"
_WRITES = "/debug/writes"
"""A tool of tests that exists in no Kubernetes: counted requests."""


@dataclass(slots=True)
class Response:
    """An answer: a body, a watch to stream, or what a kubelet is to be asked for."""

    code: int
    body: bytes = b""
    content_type: str = _JSON
    warnings: list[str] = field(default_factory=list)
    watch: lists.Watch | None = None
    upstream: pods.Upstream | None = None


class Api:
    """The whole API over one registry."""

    def __init__(self, registry: Registry, catalogue: Catalogue) -> None:
        self.registry = registry
        self.catalogue = catalogue
        self._snapshots: lists.Snapshots = OrderedDict()
        self._requests: Counter[str] = Counter()
        self._writers: defaultdict[str, Counter[str]] = defaultdict(Counter)

    async def respond(self, request: Request) -> Response:
        """The answer to a request, be it a refusal."""
        try:
            response = self.handle(request)
            if response.upstream is not None:
                response.body = await pods.fetch(response.upstream)
        except errors.ApiError as refused:
            return _refusal(refused)
        except (msgspec.DecodeError, UnicodeDecodeError) as malformed:
            return _refusal(errors.bad_request(str(malformed)))
        except Exception as failure:
            log.exception("%s %s", request.method, request.path)
            text = f"Internal error occurred: {failure}: {traceback.format_exc(limit=-3)}"
            return _refusal(errors.ApiError(500, "InternalError", text))
        return response

    def handle(self, request: Request) -> Response:
        """Answers a request.

        Raises:
            ApiError: it is refused.
        """
        target = resolve(request.path, self.catalogue)
        if target is None:
            return self._handle_other(request)
        verbs: dict[str, Callable[[Request, Target], Response]] = {
            "GET": self._read,
            "POST": self._create,
            "PUT": self._replace,
            "PATCH": self._patch,
            "DELETE": self._delete,
        }
        if (verb := verbs.get(request.method)) is None:
            raise errors.method_not_allowed()
        pods.refuse_stream(self.registry, target)
        before = self.registry.store.version
        response = verb(request, target)
        if response.watch is None:
            self._count(request, target, written=self.registry.store.version != before)
        return response

    def _count(self, request: Request, target: Target, *, written: bool) -> None:
        read = "get" if target.name else "list"
        names = {"GET": read, "POST": "create", "PUT": "update"}
        resource = "/".join(filter(None, (target.resource.qualified, target.subresource)))
        call = f"{names.get(request.method, request.method.lower())} {resource}"
        self._requests[call] += 1
        if written:
            self._writers[request.headers.get("user-agent", "")][call] += 1

    def _handle_other(self, request: Request) -> Response:
        path = request.path.rstrip("/") or "/"
        if request.method != "GET":
            raise errors.page_not_found()
        if path in ("/healthz", "/readyz", "/livez"):
            return Response(200, b"ok", "text/plain; charset=utf-8")
        if path == _WRITES:
            return Response(
                200, _encode({"requests": self._requests, "writers": dict(self._writers)})
            )
        found = discovery.answer(self.catalogue, path)
        if found is None:
            raise errors.page_not_found()
        return Response(200, _encode(found))

    def _read(self, request: Request, target: Target) -> Response:
        if target.subresource == "log":
            found = pods.upstream(self.registry, target, request.query.get("container", ""))
            return Response(200, content_type="text/plain", upstream=found)
        if target.subresource == "scale":
            return Response(200, _encode(scale.of(self.registry.get(target).obj)))
        form = Form.of(request)
        if request.flag("watch"):
            watch = lists.Watch(self.registry, target, request, form)
            stream = ";stream=watch" if form.is_table else ""
            return Response(200, content_type=_JSON + stream, watch=watch)
        if not target.name:
            body = lists.answer(self.registry, self._snapshots, target, request, form)
            return Response(200, body)
        if target.subresource not in ("", "status"):
            raise errors.method_not_allowed()
        return self._one(200, target, request, self.registry.get(target))

    def _one(
        self, code: int, target: Target, request: Request, record: Record, *warnings: str
    ) -> Response:
        body = Form.of(request).encode(target.resource, record, self.registry.env.now())
        return Response(code, body, warnings=list(warnings))

    def _create(self, request: Request, target: Target) -> Response:
        if target.subresource:
            return Response(201, _encode(pods.create(self.registry, target, request.parse())))
        if target.name or (target.resource.namespaced and not target.namespace):
            raise errors.method_not_allowed()
        warnings: list[str] = []
        record = self.registry.create(target, request.parse(), request.options(), warnings)
        return self._one(201, target, request, record, *warnings)

    def _replace(self, request: Request, target: Target) -> Response:
        if target.subresource == "scale":
            return self._rescale(request, target)
        if not target.name or target.subresource not in ("", "status"):
            raise errors.method_not_allowed()
        body, options = request.parse(), request.options()
        warnings: list[str] = []
        record = self.registry.update(target, lambda _: body, options, warnings)
        return self._one(200, target, request, record, *warnings)

    def _rescale(self, request: Request, target: Target) -> Response:
        whole, transform = replace(target, subresource=""), scale.change(request.parse())
        record = self.registry.update(whole, transform, request.options(), [])
        return Response(200, _encode(scale.of(record.obj)))

    def _patch(self, request: Request, target: Target) -> Response:
        if target.subresource == "scale":
            return self._rescale(request, target)
        if not target.name or target.subresource not in ("", "status"):
            raise errors.method_not_allowed()
        warnings: list[str] = []
        options = request.options()
        body, transform = request.patch(target.resource)
        if transform is not None:
            record = self.registry.update(target, transform, options, warnings)
            return self._one(200, target, request, record, *warnings)
        if not request.query.get("fieldManager"):
            text = "fieldManager: Required value: is required for apply patch"
            raise errors.ApiError(422, "Invalid", text)
        force = request.flag("force")
        record, created = self.registry.apply(target, body, options, warnings, force=force)
        return self._one(201 if created else 200, target, request, record, *warnings)

    def _delete(self, request: Request, target: Target) -> Response:
        if not target.name or target.subresource:
            raise errors.method_not_allowed()
        body = request.parse() if request.body.strip() else None
        options = deletion.DeleteOptions.read(body, request.query)
        return self._one(200, target, request, deletion.delete(self.registry, target, options))


def _refusal(refused: errors.ApiError) -> Response:
    return Response(refused.code, json.dumps(refused.status(), ensure_ascii=False).encode())
