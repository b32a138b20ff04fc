"""A Kubernetes API in a folder: enough for the node program, and it outlives a killed process.

Objects are files under their URL path. Nobody validates them; versions and UIDs are kept. Watches
are refused: what is tested here runs the program's parts without its threads.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn
from uuid import uuid4

import msgspec

from dra.common.resources import Obj, at
from dra.kube.errors import AlreadyExistsError, ConflictError, ObjectNotFoundError, UnavailableError
from dra.kube.http import HttpClient, Keep, Page, T

_SUBRESOURCES = ("status", "binding")
_OBJECT = "object.json"


class FolderHttp(HttpClient):
    """What HttpClient does, without a server.

    ``reach`` is called before every request with its method and path, and may raise.
    """

    def __init__(self, folder: Path, *, reach: Callable[[str, str], None] | None = None) -> None:
        self._folder = folder
        self._reach = reach

    def close(self) -> None:
        """Nothing is open."""

    def call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        content_type: str = "application/json",
        metadata_only: bool = False,
    ) -> Obj:
        if self._reach is not None:
            self._reach(method, path)
        parts = path.strip("/").split("/")
        sub = parts[-1] if parts[-1] in _SUBRESOURCES else ""
        place = self._folder.joinpath(*(parts[:-1] if sub else parts))
        if method == "GET":
            return _load(place) if (place / _OBJECT).exists() else self._listed(place, query or {})
        if method == "POST":
            return self._create(place, body)
        if method == "DELETE":
            found = _load(place)
            _check(body or {}, found, "preconditions")
            shutil.rmtree(place)
            return found
        return self._change(method, place, body, sub=sub, content_type=content_type)

    def read(self, path: str, kind: type[T]) -> T:
        return msgspec.json.decode(msgspec.json.encode(self.call("GET", path)), type=kind)

    def page(self, path: str, *, query: Mapping[str, str], keep: Keep, most: int) -> Page:
        items = self.call("GET", path, query=query)["items"]
        found = (keep(msgspec.Raw(msgspec.json.encode(item))) for item in items)
        return Page([item for item in found if item is not None], "", "", 0)

    def stream(
        self, path: str, *, query: Mapping[str, str], silence_seconds: float, keep: Keep, what: str
    ) -> NoReturn:
        raise UnavailableError(f"watch {path}: not here")

    def _listed(self, place: Path, query: Mapping[str, str]) -> Obj:
        if "limit" not in query:
            raise _missing(place)
        everywhere = place.parent.glob(f"namespaces/*/{place.name}/*/{_OBJECT}")
        paths = sorted([*place.glob(f"*/{_OBJECT}"), *everywhere])
        found = [json.loads(p.read_text()) for p in paths]
        return {"metadata": {}, "items": [o for o in found if _is_selected(o, query)]}

    def _create(self, place: Path, body: Obj) -> Obj:
        name = body["metadata"].get("name") or f"{body['metadata']['generateName']}{uuid4().hex}"
        place = place / name
        if (place / _OBJECT).exists():
            raise AlreadyExistsError(f"{place}", status=409, reason="AlreadyExists")
        made = {**body, "metadata": {**body["metadata"], "name": name, "uid": str(uuid4())}}
        return _store(place, made)

    def _change(self, method: str, place: Path, body: Any, *, sub: str, content_type: str) -> Obj:
        try:
            found = _load(place)
        except ObjectNotFoundError:
            if "apply" not in content_type or sub:
                raise
            return self._create(place.parent, body)
        _check(body, found, "metadata")
        if method == "PUT" or "apply" in content_type:
            changed = {**found, **body, "metadata": {**found["metadata"], **body["metadata"]}}
            if sub and method != "PUT":
                changed["status"] = {**found.get("status", {}), **body.get("status", {})}
            elif not sub and "status" in found:
                changed["status"] = found["status"]
        else:
            changed = _merge(found, body)
        return _store(place, changed)


def _is_selected(obj: Obj, query: Mapping[str, str]) -> bool:
    for text in filter(None, query.get("fieldSelector", "").split(",")):
        field, _, value = text.partition("=")
        if at(obj, *field.split("."), default="") != value:
            return False
    labels = at(obj, "metadata", "labels", default={})
    wanted = filter(None, query.get("labelSelector", "").split(","))
    return all(labels.get(key) == value for key, _, value in (w.partition("=") for w in wanted))


def _check(body: Obj, found: Obj, where: str) -> None:
    for field in ("uid", "resourceVersion"):
        wanted = (body.get(where) or {}).get(field)
        if wanted and wanted != found["metadata"][field]:
            raise ConflictError(f"{field} is {found['metadata'][field]}", status=409)


def _merge(old: Any, new: Any) -> Any:
    if not isinstance(old, dict) or not isinstance(new, dict):
        return new
    merged = {k: v for k, v in old.items() if new.get(k, v) is not None}
    return merged | {k: _merge(old.get(k), v) for k, v in new.items() if v is not None}


def _missing(place: Path) -> ObjectNotFoundError:
    return ObjectNotFoundError(f"{place.name} not found", status=404, details={"name": place.name})


def _load(place: Path) -> Obj:
    try:
        found: Obj = json.loads((place / _OBJECT).read_text())
    except FileNotFoundError:
        raise _missing(place) from None
    return found


def _store(place: Path, body: Obj) -> Obj:
    version = int(body["metadata"].get("resourceVersion", "0")) + 1
    body["metadata"]["resourceVersion"] = str(version)
    place.mkdir(parents=True, exist_ok=True)
    partial = place / ".partial"
    partial.write_text(json.dumps(body))
    partial.replace(place / _OBJECT)
    return body
