"""A bare HTTP client from a kubeconfig, so that nothing stands between a case and the server."""

from __future__ import annotations

import base64
import contextlib
import json
import queue
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlencode

import urllib3
import yaml

from tests.helpers.waiting import PATIENCE

if TYPE_CHECKING:
    from pathlib import Path

Obj = dict[str, Any]

MERGE = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
APPLY = "application/apply-patch+yaml"


@dataclass(frozen=True)
class Answer:
    """What the server said."""

    code: int
    body: Any
    headers: Any

    def ok(self) -> Obj:
        """The body of an answer that has to be a success."""
        assert self.code < 300, f"{self.code}: {self.body}"
        body: Obj = self.body
        return body

    def refused(self, code: int, reason: str = "") -> str:
        """The message of an answer that has to be a refusal."""
        assert self.code == code, f"{self.code}: {self.body}"
        assert self.body["status"] == "Failure"
        if reason:
            assert self.body.get("reason") == reason, self.body
        return str(self.body["message"])

    def causes(self) -> set[tuple[str, str]]:
        """The (reason, field) pairs of a 422."""
        assert self.code == 422, f"{self.code}: {self.body}"
        return {(cause["reason"], cause["field"]) for cause in self.body["details"]["causes"]}


class Api:
    """One server."""

    def __init__(self, kubeconfig: Path) -> None:
        given = yaml.safe_load(kubeconfig.read_text())
        cluster, user = given["clusters"][0]["cluster"], given["users"][0]["user"]
        self._host = cluster["server"]
        self._headers = {"User-Agent": "conformance/1.0", "Accept": "application/json"}
        if token := user.get("token"):
            self._headers["Authorization"] = f"Bearer {token}"
        authority = base64.b64decode(cluster.get("certificate-authority-data", ""))
        self._pool = urllib3.PoolManager(
            maxsize=16, ca_cert_data=authority.decode() or None, retries=False, timeout=PATIENCE
        )

    def close(self) -> None:
        self._pool.clear()

    def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        content: str = "application/json",
        headers: dict[str, str] | None = None,
        **params: str | int | bool,
    ) -> Answer:
        fields = {name.rstrip("_"): _text(value) for name, value in params.items()}
        sent = self._headers | {"Content-Type": content} | (headers or {})
        url = self._host + path
        if fields:
            url += "?" + urlencode(fields)
        response = self._pool.request(
            method, url, body=None if body is None else json.dumps(body), headers=sent
        )
        try:
            parsed = json.loads(response.data)
        except ValueError:
            parsed = response.data.decode()
        return Answer(response.status, parsed, response.headers)

    def get(self, path: str, **params: Any) -> Answer:
        return self.call("GET", path, **params)

    def post(self, path: str, body: Any, **params: Any) -> Answer:
        return self.call("POST", path, body, **params)

    def put(self, path: str, body: Any, **params: Any) -> Answer:
        return self.call("PUT", path, body, **params)

    def merge(self, path: str, body: Any, **params: Any) -> Answer:
        return self.call("PATCH", path, body, content=MERGE, **params)

    def patch(self, path: str, body: Any, **params: Any) -> Answer:
        return self.call("PATCH", path, body, content=JSON_PATCH, **params)

    def strategic(self, path: str, body: Any, **params: Any) -> Answer:
        return self.call("PATCH", path, body, content=STRATEGIC, **params)

    def apply(self, path: str, body: Any, *, manager: str = "me", **params: Any) -> Answer:
        return self.call("PATCH", path, body, content=APPLY, fieldManager=manager, **params)

    def delete(self, path: str, body: Any = None, **params: Any) -> Answer:
        return self.call("DELETE", path, body, **params)

    def watch(self, path: str, *, accept: str = "application/json", **params: Any) -> Watch:
        fields = {name: _text(value) for name, value in params.items()} | {"watch": "true"}
        url = self._host + path + "?" + urlencode(fields)
        response = self._pool.request(
            "GET",
            url,
            headers=self._headers | {"Accept": accept},
            preload_content=False,
            timeout=urllib3.Timeout(connect=PATIENCE, read=PATIENCE),
        )
        assert response.status == 200, response.data
        return Watch(response)


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


@dataclass(frozen=True)
class Event:
    """One event of a watch."""

    type: str
    object: Obj

    @property
    def name(self) -> str:
        """Name of the object; of an error what the server says."""
        return str(self.object["metadata"].get("name") or self.object.get("message", ""))

    @property
    def seen(self) -> tuple[str, str]:
        return self.type, self.name


class Watch:
    """Reads a watch in the background."""

    def __init__(self, response: Any) -> None:
        self._response = response
        self._events: queue.Queue[Event | None] = queue.Queue()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(RuntimeError):  # the server ended it: nothing to shut down
            self._response.shutdown()
        self._thread.join(timeout=PATIENCE)

    def _read(self) -> None:
        rest = b""
        try:
            for chunk in self._response.stream(64 * 1024):
                *lines, rest = (rest + chunk).split(b"\n")
                for line in filter(None, lines):
                    event = json.loads(line)
                    self._events.put(Event(event["type"], event["object"]))
        except (urllib3.exceptions.HTTPError, OSError, ValueError, AttributeError):
            pass  # closed while reading
        self._events.put(None)

    def next(self, *, seconds: float = PATIENCE) -> Event:
        """The next event; fails if none comes or the watch ends."""
        event = self._events.get(timeout=seconds)
        assert event is not None, "the watch has ended"
        return event

    def rest(self, *, seconds: float = PATIENCE) -> list[Event]:
        """Everything until the server ends the watch."""
        found = []
        deadline = time.monotonic() + seconds
        while (
            event := self._events.get(timeout=max(0.1, deadline - time.monotonic()))
        ) is not None:
            found.append(event)
        return found
