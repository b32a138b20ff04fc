"""The API as the node program reaches it, its writes among the steps that are counted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dra.common.resources import PODS
from dra.kube.client import KubeApi
from dra.kube.errors import UnavailableError
from tests.failures.helpers.daemonpods import run_pods
from tests.failures.helpers.folderapi import FolderHttp
from tests.failures.helpers.site import Site
from tests.failures.helpers.steps import Step, StepRecorder


class RecordedApi:
    """Clients of a site's API: their writes are steps, and while ``is_down`` nothing answers."""

    def __init__(self, site: Site, recorder: StepRecorder, *, is_down: Callable[[], bool]) -> None:
        self._site = site
        self._recorder = recorder
        self._is_down = is_down
        self._http = FolderHttp(site.root / "api")
        self.api = KubeApi(_Recording(self._http, self._call))

    def _call(self, method: str, path: str, **more: Any) -> Any:
        if self._is_down():
            raise UnavailableError(f"{method} {path}: connection refused")
        if method == "GET":
            with self._recorder.outside():
                return self._http.call(method, path, **more)
        step = Step("api", method, path)
        return self._recorder.step(step, lambda: self._change(method, path, **more))

    def _change(self, method: str, path: str, **more: Any) -> Any:
        answer = self._http.call(method, path, **more)
        if f"/{PODS.plural}" in path:
            run_pods(self._site.api(), self._site.daemons)
        return answer


class _Recording(FolderHttp):
    def __init__(self, http: FolderHttp, call: Callable[..., Any]) -> None:
        super().__init__(http._folder)
        self._recorded = call

    def call(self, method: str, path: str, **more: Any) -> Any:
        return self._recorded(method, path, **more)
