"""A watch as the client reads it: one line of JSON for each event."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from dra.common.resources import Obj
from sim.apiserver.refusals import errors
from sim.apiserver.storage.watching import INITIAL_EVENTS_END, Watch, begin

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from sim.apiserver.forms.bodies import Form
    from sim.apiserver.forms.requests import Request
    from sim.apiserver.storage.selectors import Selection
    from sim.apiserver.storage.store import Record
    from sim.apiserver.verbs.incoming import Target
    from sim.apiserver.verbs.registry import Registry

_encode = msgspec.json.Encoder().encode
_SHORTEST_DEFAULT_SECONDS = 1800


@dataclass(frozen=True, slots=True)
class Stream:
    """The lines of a watch, and the call that ends it."""

    lines: AsyncIterator[bytes]
    close: Callable[[], None]


def open_watch(
    registry: Registry, target: Target, selection: Selection, request: Request, form: Form
) -> Stream:
    """Begins a watch; from this call on no change is missed.

    Raises:
        ApiError: the parameters are refused.
    """
    store, kind = registry.store, registry.kind(target.resource)
    initial = request.flag("sendInitialEvents")
    bookmarks = request.flag("allowWatchBookmarks")
    if initial and not (bookmarks and request.query.get("resourceVersionMatch") == "NotOlderThan"):
        raise errors.ApiError(
            422,
            "Invalid",
            'ListOptions.meta.k8s.io "" is invalid: resourceVersionMatch: Forbidden: '
            "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan",
        )
    watch = Watch(
        store,
        target.resource.family,
        namespace=target.namespace,
        selection=selection,
        fields_of=kind.select,
    )
    asked = request.query.get("resourceVersion", "")
    expired = begin(watch, store, asked, initial_events=initial)
    seconds = request.number("timeoutSeconds") or random.randint(
        _SHORTEST_DEFAULT_SECONDS, 2 * _SHORTEST_DEFAULT_SECONDS
    )

    def line(event: str, what: Record | int) -> bytes:
        if not isinstance(what, int):
            body = form.encode(target.resource, what, registry.env.now())
            return b'{"type":"%b","object":%b}\n' % (event.encode(), body)
        metadata: Obj = {"resourceVersion": str(what), "creationTimestamp": None}
        if event == "INITIAL":
            metadata["annotations"] = {INITIAL_EVENTS_END: "true"}
        bookmark: Obj = {
            "kind": target.resource.kind,
            "apiVersion": target.resource.api_version,
            "metadata": metadata,
        }
        if form.kind == "Table":
            bookmark = {"kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": metadata}
            bookmark |= {"columnDefinitions": None, "rows": []}
        return _encode({"type": "BOOKMARK", "object": bookmark}) + b"\n"

    async def lines() -> AsyncIterator[bytes]:
        if expired is not None:
            yield _encode({"type": "ERROR", "object": expired.status()}) + b"\n"
            return
        async for event, what in watch.events(
            seconds=seconds, bookmarks=bookmarks, mark_initial_end=initial
        ):
            yield line(event, what)

    return Stream(lines(), watch.close)
