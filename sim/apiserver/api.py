"""The API between requests and responses: discovery, the verbs, watches. It knows no sockets.

`Debug` is a tool of tests and exists in no Kubernetes: it counts writes and injects faults.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from dra.common.resources import Obj
from sim.apiserver import bodies, deletion, discovery, errors, lists, pods
from sim.apiserver.lists import Stream, open_watch
from sim.apiserver.requests import Request, Target, resolve

if TYPE_CHECKING:
    from collections.abc import Callable

    from sim.apiserver.registry import Registry
    from sim.apiserver.resources import Catalogue
    from sim.apiserver.store import Record


@dataclass(slots=True)
class Fault:
    """A trap for the next `count` requests of a method whose path a pattern finds.

    They answer `status`, or lose their connection (`drop`), or are delayed by `delay` seconds and
    then served. `after` lets the request be carried out first: the answer is lost, not the write.
    """

    method: str
    path: re.Pattern[str]
    count: int
    status: int = 0
    drop: bool = False
    delay: float = 0.0
    after: bool = False
    message: str = "injected fault"

    @classmethod
    def parse(cls, body: Any) -> Fault:
        """Reads a fault (400 if it is malformed)."""
        try:
            return cls(
                method=str(body.get("method", "*")).upper(),
                path=re.compile(body.get("path", "")),
                count=int(body.get("count", 1)),
                status=int(body.get("status", 0)),
                drop=bool(body.get("drop", False)),
                delay=float(body.get("delay", 0.0)),
                after=bool(body.get("after", False)),
                message=str(body.get("message", "injected fault")),
            )
        except (AttributeError, TypeError, ValueError, re.error) as failure:
            raise errors.bad_request(f"fault: {failure}") from None


class Debug:
    """Counters and faults of one server."""

    def __init__(self) -> None:
        self.writes: Counter[str] = Counter()
        self.requests: Counter[str] = Counter()
        self.writers: dict[str, Counter[str]] = {}
        self.faults: list[Fault] = []

    def count(self, verb: str, target: Target, *, written: bool, agent: str) -> None:
        """Counts a served request of a user agent, and whether it changed something."""
        name = "/".join(filter(None, (target.resource.qualified, target.subresource)))
        self.requests[f"{verb} {name}"] += 1
        if written:
            self.writes[f"{verb} {name}"] += 1
            self.writers.setdefault(agent, Counter())[f"{verb} {name}"] += 1

    def forget(self) -> None:
        """Begins to count anew."""
        self.writes.clear()
        self.requests.clear()
        self.writers.clear()

    def fault_for(self, request: Request) -> Fault | None:
        """The fault that this request runs into, used up by one."""
        for fault in self.faults:
            if fault.method in ("*", request.method) and fault.path.search(request.path):
                fault.count -= 1
                if fault.count <= 0:
                    self.faults.remove(fault)
                return fault
        return None

    def report(self, version: int) -> Obj:
        """Answers GET /debug/writes."""
        return {
            "resourceVersion": version,
            "total": self.writes.total(),
            "writes": dict(sorted(self.writes.items())),
            "requests": dict(sorted(self.requests.items())),
            "writers": {agent: dict(sorted(c.items())) for agent, c in self.writers.items()},
            "faults": len(self.faults),
        }


_encode = msgspec.json.Encoder().encode
_JSON = "application/json"


@dataclass(slots=True)
class Response:
    """An answer: a body, a watch to stream, or what a kubelet is to be asked for."""

    code: int
    body: bytes = b""
    content_type: str = _JSON
    warnings: list[str] = field(default_factory=list)
    watch: Stream | None = None
    upstream: pods.Upstream | None = None


class Api:
    """The whole API over one registry."""

    def __init__(self, registry: Registry, catalogue: Catalogue) -> None:
        self.registry = registry
        self.catalogue = catalogue
        self.debug = Debug()
        self._lists = lists.Lists(registry)

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
            "HEAD": self._read,
            "POST": self._create,
            "PUT": self._replace,
            "PATCH": self._patch,
            "DELETE": self._delete,
        }
        verb = verbs.get(request.method)
        if verb is None:
            raise errors.method_not_allowed()
        before = self.registry.store.version
        response = verb(request, target)
        if response.watch is None:
            written = self.registry.store.version != before
            agent = request.headers.get("user-agent", "")
            self.debug.count(_verb(request, target), target, written=written, agent=agent)
        return response

    def _handle_other(self, request: Request) -> Response:
        path = request.path.rstrip("/") or "/"
        if path in ("/healthz", "/readyz", "/livez"):
            return Response(200, b"ok", "text/plain; charset=utf-8")
        if path.startswith("/debug/"):
            return self._handle_debug(request, path)
        if request.method not in ("GET", "HEAD"):
            raise errors.page_not_found()
        wants_aggregated = "as=APIGroupDiscoveryList" in request.headers.get("accept", "")
        if path in ("/api", "/apis") and wants_aggregated:
            found = discovery.aggregated(self.catalogue, core=path == "/api")
            return Response(200, _encode(found), discovery.AGGREGATED)
        answer = self._discover(path)
        if answer is None:
            raise errors.page_not_found()
        return Response(200, _encode(answer))

    def _discover(self, path: str) -> Obj | None:
        fixed: dict[str, Callable[[], Obj]] = {
            "/version": lambda: discovery.VERSION,
            "/api": discovery.api_versions,
            "/apis": lambda: discovery.group_list(self.catalogue),
            "/openapi/v3": lambda: discovery.index(self.catalogue),
        }
        if path in fixed:
            return fixed[path]()
        match path.strip("/").split("/"):
            case ["api", version]:
                return discovery.resource_list(self.catalogue, "", version)
            case ["apis", group]:
                return discovery.group(self.catalogue, group)
            case ["apis", group, version]:
                return discovery.resource_list(self.catalogue, group, version)
            case ["openapi", "v3", *rest]:
                return discovery.document(self.catalogue, "/".join(rest))
        return None

    def _handle_debug(self, request: Request, path: str) -> Response:
        if path == "/debug/writes" and request.method == "GET":
            return Response(200, _encode(self.debug.report(self.registry.store.version)))
        if path == "/debug/writes" and request.method == "DELETE":
            self.debug.forget()
            return Response(200, b"{}")
        if path == "/debug/faults" and request.method == "POST":
            self.debug.faults.append(Fault.parse(bodies.parse(request)))
            return Response(201, b"{}")
        if path == "/debug/faults" and request.method == "DELETE":
            self.debug.faults.clear()
            return Response(200, b"{}")
        if path == "/debug/compact" and request.method == "POST":
            self.registry.store.compact()
            return Response(200, b"{}")
        raise errors.page_not_found()

    def _read(self, request: Request, target: Target) -> Response:
        if target.subresource == "log":
            found = pods.upstream(self.registry, target, request.query.get("container", ""))
            return Response(200, content_type="text/plain", upstream=found)
        form = bodies.form(request)
        if target.name and not request.flag("watch"):
            if target.subresource not in ("", "status"):
                raise errors.method_not_allowed()
            return self._one(200, target, self.registry.get(target), form)
        fields = request.query.get("fieldSelector", "")
        if target.name:
            fields = ",".join(filter(None, (fields, f"metadata.name={target.name}")))
        labels = request.query.get("labelSelector", "")
        selection = self.registry.selection(target.resource, labels, fields)
        if request.flag("watch"):
            stream = open_watch(self.registry, target, selection, request, form)
            content_type = form.content_type + (";stream=watch" if form.is_special else "")
            return Response(200, content_type=content_type, watch=stream)
        return Response(
            200, self._lists.answer(target, selection, request, form), form.content_type
        )

    def _one(
        self, code: int, target: Target, record: Record, form: bodies.Form, *warnings: str
    ) -> Response:
        body = form.encode(target.resource, record, self.registry.env.now())
        return Response(code, body, form.content_type, list(warnings))

    def _create(self, request: Request, target: Target) -> Response:
        form = bodies.form(request)
        if target.subresource:
            status = pods.create(self.registry, target, bodies.parse(request))
            return Response(201, _encode(status))
        if target.name:
            raise errors.method_not_allowed()
        if target.resource.namespaced and not target.namespace:
            raise errors.method_not_allowed()
        warnings: list[str] = []
        record = self.registry.create(
            target, bodies.parse(request), request.write_options(), warnings
        )
        return self._one(201, target, record, form, *warnings)

    def _replace(self, request: Request, target: Target) -> Response:
        form = bodies.form(request)
        if not target.name or target.subresource in ("binding", "eviction", "log"):
            raise errors.method_not_allowed()
        body = bodies.parse(request)
        warnings: list[str] = []
        options = request.write_options()
        if self.registry.creates_by_update(target):
            record = self.registry.create(target, body, options, warnings)
            return self._one(201, target, record, form, *warnings)
        self.registry.require_version(target, body)
        record = self.registry.update(target, lambda _: body, options, warnings)
        return self._one(200, target, record, form, *warnings)

    def _patch(self, request: Request, target: Target) -> Response:
        form = bodies.form(request)
        if not target.name or target.subresource not in ("", "status"):
            raise errors.method_not_allowed()
        warnings: list[str] = []
        options = request.write_options()
        patch = bodies.parse_patch(request, target.resource)
        if patch.applies:
            manager = request.query.get("fieldManager", "")
            bodies.require_manager(manager)
            record, created = self.registry.apply(
                target, patch.body, options, warnings, force=request.flag("force")
            )
            return self._one(201 if created else 200, target, record, form, *warnings)
        record = self.registry.update(target, patch.transform, options, warnings)
        return self._one(200, target, record, form, *warnings)

    def _delete(self, request: Request, target: Target) -> Response:
        form = bodies.form(request)
        if target.subresource:
            raise errors.method_not_allowed()
        body = bodies.parse(request) if request.body.strip() else None
        options = deletion.parse_options(body, request.query)
        if not target.name:
            return Response(200, self._lists.delete(target, request, options))
        code, outcome = deletion.delete(self.registry, target, options)
        if isinstance(outcome, dict):
            return Response(code, _encode(outcome))
        return self._one(code, target, outcome, form)


def _verb(request: Request, target: Target) -> str:
    if request.method in ("GET", "HEAD"):
        return "get" if target.name else "list"
    if request.method == "DELETE":
        return "delete" if target.name else "deletecollection"
    return {"POST": "create", "PUT": "update", "PATCH": "patch"}[request.method]
