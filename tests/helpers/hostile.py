"""An API server full of objects as large as a user can store, in every field that takes much.

In JSON they are larger than in etcd: ``<`` is written as six characters.
"""

from __future__ import annotations

import contextlib
import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

Obj = dict[str, Any]

STORED = 1_400_000
"""Bytes of a large object in etcd."""

DRIVER = "mig.dra.dev"
_ESCAPED = "<" * STORED
_CLAIM = {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "mig-1g.5gb"}}]}}
_OWNER = {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u", "controller": False}


def _many(text: Callable[[int], str], size: int = STORED) -> dict[str, str]:
    return {text(n): "x" * 60 for n in range(size // 80)}


METADATA: Mapping[str, Callable[[], Obj]] = {
    "labels": lambda: {"labels": _many("example.com/{}".format)},
    "annotations": lambda: {"annotations": {"a": "<" * 250_000}},
    "owners": lambda: {"ownerReferences": [_OWNER] * (STORED // 60)},
    "finalizers": lambda: {"finalizers": [f"e.com/{n}" for n in range(STORED // 12)]},
    "managers": lambda: {
        "managedFields": [
            {"manager": "m", "fieldsV1": {f"f:{n}": {"f:a": {}} for n in range(STORED // 12)}}
        ]
    },
}
"""Metadata that any object may have, each as large as may be."""

_TERM = {"matchExpressions": [{"key": "k", "operator": "In", "values": ["ab"] * 200_000}]}
_ONE_OF = "requiredDuringSchedulingIgnoredDuringExecution"
SPECS: Mapping[str, tuple[Callable[[], Obj], ...]] = {
    "resourceclaims": (
        lambda: _claim([f"'{_ESCAPED}' != ''"]),
        lambda: _claim(["true"] * (STORED // 30)),
        lambda: {
            **_CLAIM,
            "config": [{"opaque": {"driver": DRIVER, "parameters": {"a": _ESCAPED}}}],
        },
    ),
    "pods": (
        lambda: _pod(containers=[{"name": "c", "env": [{"name": "a", "value": _ESCAPED}]}]),
        lambda: _pod(containers=[{"name": f"c{n}"} for n in range(STORED // 20)]),
        lambda: _pod(affinity={"nodeAffinity": {_ONE_OF: {"nodeSelectorTerms": [_TERM]}}}),
        lambda: _pod(tolerations=[{"key": "k", "operator": "Exists"}] * (STORED // 20)),
        lambda: _pod(overhead={f"example.com/{n}": "1" for n in range(STORED // 30)}),
    ),
    "persistentvolumeclaims": (
        lambda: {"accessModes": ["ReadWriteOnce"], "selector": _TERM},
        lambda: {"accessModes": ["ReadWriteOnce"] * (STORED // 20), "volumeName": _ESCAPED},
    ),
    "persistentvolumes": (lambda: {"nodeAffinity": {"required": {"nodeSelectorTerms": [_TERM]}}},),
    "nodes": (
        lambda: {"taints": [{"key": "k", "value": "v", "effect": "PreferNoSchedule"}] * 10_000},
    ),
    "resourceslices": (
        lambda: {
            "driver": "other.example.com",
            "nodeName": "n",
            "pool": {"name": "n"},
            "devices": [
                {"name": f"d{n}", "attributes": {"a": {"string": "x" * 10_000}}}
                for n in range(STORED // 10_000)
            ],
        },
    ),
    "workloads": (lambda: {"podGroups": [{"name": f"g{n}"} for n in range(STORED // 20)]},),
}
"""Specs by plural, each as large as may be; of other kinds they are empty."""

KINDS = (
    *("resourceclaims", "pods", "persistentvolumeclaims", "persistentvolumes", "nodes"),
    *("resourceslices", "workloads", "podgroups", "namespaces", "storageclasses"),
    *("resourceclaimtemplates", "events"),
)


def _claim(selectors: list[str]) -> Obj:
    found = [{"cel": {"expression": text}} for text in selectors]
    exactly = {"deviceClassName": "mig-1g.5gb", "selectors": found}
    return {"devices": {"requests": [{"name": "r", "exactly": exactly}]}}


def _pod(**spec: Any) -> Obj:
    entry = {"name": "c", "resourceClaimName": "none"}
    return {"containers": [{"name": "c"}], "resourceClaims": [entry], **spec}


@cache
def _shapes(plural: str) -> tuple[tuple[bytes, bytes], ...]:
    """Metadata and spec of the objects of a kind, as the API server writes them."""
    found: list[tuple[Obj, Obj]] = [({}, make()) for make in SPECS.get(plural, ())]
    found += [(make(), _usual(plural)) for make in METADATA.values()]
    return tuple((_encoded(meta), _encoded(spec)) for meta, spec in found)


def _usual(plural: str) -> Obj:
    """The spec of an object that is as any other."""
    pool = {"driver": "other.example.com", "nodeName": "n", "pool": {"name": "n"}, "devices": []}
    return {"resourceclaims": _CLAIM, "pods": _pod(), "resourceslices": pool}.get(plural, {})


def _encoded(value: Obj) -> bytes:
    return json.dumps(value, separators=(",", ":")).replace("<", "\\u003c").encode()


def large(plural: str, number: int, version: int = 1) -> bytes:
    """The JSON of a large object; the number decides in what it is large."""
    shapes = _shapes(plural)
    metadata, spec = shapes[number % len(shapes)]
    head = _head(plural, f"large-{number}", version)
    more = b"," + metadata[1:-1] if len(metadata) > 2 else b""
    return b'{"metadata":{' + head + more + b'},"spec":' + spec + b"}"


def small(plural: str, number: int) -> bytes:
    """The JSON of a usual claim, or of an object without a spec."""
    spec = _encoded(_usual(plural))
    head = _head(plural, f"small-{number}", 1)
    return b'{"metadata":{' + head + b'},"spec":' + spec + b"}"


def _head(plural: str, name: str, version: int) -> bytes:
    named = {"name": name, "namespace": "tenant", "uid": f"{plural}-{name}"}
    return _encoded({**named, "resourceVersion": str(version)})[1:-1]


@dataclass
class Hostile:
    """The server. Of each kind it has ``few`` small objects, and then ``many`` large ones.

    ``events``: each watch of ``watched`` tells of so many changes of large objects, then idles.
    ``told``: kinds of which all changes were read.
    """

    few: int
    many: Mapping[str, int]
    events: int = 0
    watched: tuple[str, ...] = ()
    told: set[str] = field(default_factory=set)
    closing: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Self:
        handler = type("Handler", (_Handler,), {"hostile": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.closing.set()
        self._server.shutdown()
        self._server.server_close()

    def kubeconfig(self, path: Path) -> str:
        url = f"http://127.0.0.1:{self._server.server_address[1]}"
        context = {"name": "c", "context": {"cluster": "c", "user": "u"}}
        config = {
            "current-context": "c",
            "contexts": [context],
            "clusters": [{"name": "c", "cluster": {"server": url}}],
            "users": [{"name": "u", "user": {"token": "t"}}],
        }
        path.write_text(json.dumps(config))
        return str(path)

    def objects(self, plural: str, begin: int, limit: int) -> Iterator[bytes]:
        few = self.few if plural in self.many else 0
        end = min(self.size(plural), begin + limit)
        for number in range(begin, end):
            is_small = number < few
            yield small(plural, number) if is_small else large(plural, number - few)

    def size(self, plural: str) -> int:
        return self.few + self.many[plural] if plural in self.many else 0


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hostile: Hostile

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        pass

    def handle(self) -> None:
        with contextlib.suppress(OSError):  # the client has read enough
            super().handle()

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        query = {key: values[0] for key, values in parse_qs(url.query).items()}
        plural = url.path.rpartition("/")[2]
        if re.fullmatch(r"/apis/[^/]+(/v[^/]+)?|/version", url.path):
            found = {"versions": [{"version": "v1"}], "resources": [{"name": k} for k in KINDS]}
            self._send(json.dumps(found).encode())
        elif "watch" in query:
            self._watch(plural)
        else:
            self._list(plural, query)

    def _list(self, plural: str, query: Mapping[str, str]) -> None:
        begin, limit = int(query.get("continue", 0)), int(query.get("limit", 10**9))
        size = self.hostile.size(plural)
        metadata = {"resourceVersion": "1"}
        if begin + limit < size:
            metadata["continue"] = str(begin + limit)
        self._begin()
        self._chunk(b'{"metadata":' + json.dumps(metadata).encode() + b',"items":[')
        for place, item in enumerate(self.hostile.objects(plural, begin, limit)):
            self._chunk((b"," if place else b"") + item)
        self._chunk(b"]}")
        self.wfile.write(b"0\r\n\r\n")

    def _watch(self, plural: str) -> None:
        self._begin()
        if plural in self.hostile.watched and plural not in self.hostile.told:
            for number in range(self.hostile.events):
                item = large(plural, number, version=number + 2)
                self._chunk(b'{"type":"MODIFIED","object":' + item + b"}\n")
            self.hostile.told.add(plural)
        self.hostile.closing.wait()

    def _begin(self) -> None:
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()

    def _send(self, data: bytes, status: int = 200) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _refuse(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self._send(json.dumps({"kind": "Status", "code": 403, "message": "no"}).encode(), 403)

    do_POST = do_PUT = do_PATCH = do_DELETE = _refuse  # noqa: N815 - the base class's names
