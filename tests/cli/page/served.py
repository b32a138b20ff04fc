"""Pages that are served: by ``kubectl mig ui``, and to readers with the rights of a test."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from cli.output import Output
from cli.page.server import PageServer
from cli.page.source import ClusterSource, mirrored
from cli.session import Session
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

    def data(self, *, since: str = "") -> Any:
        answer = self.ask(f"/data?since={quote(since)}")
        assert answer.status == 200, answer
        return answer.json

    def loaded(self) -> Any:
        """The data once all is listed."""
        found: list[Any] = []

        def listed() -> bool:
            found[:] = [self.data()]
            return not found[0]["loading"] and not found[0]["backlog"]

        wait_for("what the page shows", listed)
        return found[0]


@contextmanager
def running_ui(kubeconfig: Path, *arguments: str) -> Iterator[Page]:
    """``kubectl mig ui`` as a program of its own."""
    command = [sys.executable, "-m", "cli", "ui", "--kubeconfig", str(kubeconfig)]
    with subprocess.Popen([*command, *arguments], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline()
            assert address, "it has ended"
            yield Page(address.strip())
        finally:
            process.terminate()


@contextmanager
def page_for(world: World, *, port: int = 0) -> Iterator[Page]:
    """A page in this process, with the token ``secret``."""
    session = Session(world.api, Output(sys.stdout), "", lambda: datetime.now(UTC))
    with mirrored(session) as source, served_from(source, port=port) as page:
        yield page


@contextmanager
def served_from(source: ClusterSource, *, port: int = 0) -> Iterator[Page]:
    """A page that shows what ``source`` answers."""
    with PageServer(port, source, "secret") as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield Page(server.address)
        finally:
            server.shutdown()
            thread.join()


def port_of(page: Page) -> int:
    return urlsplit(page.address).port or 0
