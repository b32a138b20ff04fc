"""The plugin's client of the API server, whose network can be cut."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from dra.common.resources import Obj
from dra.kube.connection import Connection
from dra.kube.errors import KubeError, UnavailableError
from dra.kube.http import HttpClient, Page, T
from dra.kube.kubeconfig import load_access


class PluginHttp(HttpClient):
    """The plugin's real client; ``writes`` are its requests that change something.

    ``down`` cuts the network. ``refuse`` may name an error to answer a request with instead.
    """

    def __init__(self, kubeconfig: Path) -> None:
        connection = Connection(load_access(str(kubeconfig)))
        super().__init__(connection, user_agent="tests/plugin", timeout_seconds=30.0)
        self.writes: list[tuple[str, str]] = []
        self.down = False
        self.refuse: Callable[[str, str], KubeError | None] = lambda method, path: None

    def call(self, method: str, path: str, **more: Any) -> Obj:
        self._reach(method, path)
        if method != "GET":
            self.writes.append((method, path))
        return super().call(method, path, **more)

    def read(self, path: str, kind: type[T]) -> T:
        self._reach("GET", path)
        return super().read(path, kind)

    def page(self, path: str, **more: Any) -> Page:
        self._reach("GET", path)
        return super().page(path, **more)

    def _reach(self, method: str, path: str) -> None:
        if self.down:
            raise UnavailableError(f"{method} {path}: connection refused")
        if error := self.refuse(method, path):
            raise error
