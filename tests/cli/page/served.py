"""Pages that are served: by ``kubectl mig ui``, and to readers with the rights of a test."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from cli.output import Output
from cli.page.mirrors import Reader
from cli.page.server import PageServer
from cli.page.source import ClusterSource, mirrored
from cli.session import Session
from dra.common.resources import Resource
from tests.cli.world import World
from tests.helpers.waiting import wait_for


@dataclass(frozen=True)
class Answer:
    """One answer over HTTP."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class Page:
    """A page that is served; ``url`` has the token behind its fragment."""

    url: str

    @property
    def address(self) -> str:
        return self.url.partition("/#")[0]

    @property
    def token(self) -> str:
        return self.url.partition("token=")[2]

    def ask(
        self, path: str, *, method: str = "GET", token: str | None = None, **headers: str
    ) -> Answer:
        """One request; with the page's own token unless another is given ("" is none)."""
        given = self.token if token is None else token
        sent = {name.replace("_", "-"): text for name, text in headers.items()}
        if given:
            sent["Authorization"] = f"Bearer {given}"
        request = urllib.request.Request(f"{self.address}{path}", headers=sent, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return Answer(answer.status, dict(answer.headers), answer.read())
        except urllib.error.HTTPError as error:
            with error:
                return Answer(error.code, dict(error.headers), error.read())

    def data(self, *, since: str = "", namespace: str = "", token: str | None = None) -> Any:
        answer = self.ask(f"/data?since={quote(since)}&namespace={namespace}", token=token)
        assert answer.status == 200, answer
        return answer.json

    def loaded(self, **given: Any) -> Any:
        """The data once all is listed."""
        found: list[Any] = []

        def listed() -> bool:
            found[:] = [self.data(**given)]
            return not found[0]["loading"] and not found[0]["backlog"]

        wait_for("what the page shows", listed)
        return found[0]


@contextmanager
def running_ui(kubeconfig: Path, *arguments: str) -> Iterator[Page]:
    """``kubectl mig ui`` as a program of its own."""
    command = [sys.executable, "-m", "cli", "ui", "-o", "json", "--kubeconfig", str(kubeconfig)]
    with subprocess.Popen([*command, *arguments], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            text = ""
            while "\n}" not in text:
                line = process.stdout.readline()
                assert line, "it has ended"
                text += line
            yield Page(json.loads(text)["url"])
        finally:
            process.terminate()


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@contextmanager
def running_program(kubeconfig: Path, *arguments: str, port: int = 0) -> Iterator[Page]:
    """``python -m cli.page``, which reviews tokens."""
    port = port or free_port()
    command = [sys.executable, "-m", "cli.page", "--kubeconfig", str(kubeconfig)]
    command += ["--port", str(port), *arguments]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        page = Page(f"http://127.0.0.1:{port}/#token=user.admin")

        def answers() -> bool:
            assert process.poll() is None, "it has ended"
            with suppress(urllib.error.URLError):
                return page.ask("/healthz").status == 200
            return False

        try:
            wait_for("the page", answers)
            yield page
        finally:
            process.terminate()


def may_all(_: Resource, __: str) -> bool:
    return True


@contextmanager
def page_for(
    world: World,
    may_list: Callable[[Resource, str], bool] = may_all,
    *,
    port: int = 0,
    tls: Path | None = None,
) -> Iterator[Page]:
    """A page in this process for a reader who may list what the test says."""
    output = Output(sys.stdout)
    session = Session(world.api, output, "", lambda: datetime.now(UTC))
    readers = {"secret": Reader(may_list)}
    with mirrored(session, namespace="") as (mirrors, content, evaluator):
        source = ClusterSource(
            session, mirrors, content, find_reader=readers.get, evaluator=evaluator
        )
        with PageServer(("127.0.0.1", port), source, tls=tls) as server:
            thread = threading.Thread(target=server.serve_forever, args=(0.05,))
            thread.start()
            try:
                yield Page(f"http://127.0.0.1:{server.server_address[1]}/#token=secret")
            finally:
                server.shutdown()
                thread.join()


def port_of(page: Page) -> int:
    return urlsplit(page.address).port or 0
