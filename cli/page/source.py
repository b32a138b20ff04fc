"""Content of the page for its readers: one for all, cut to the rights of each."""

from __future__ import annotations

import hmac
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from cli.page.content import Content
from cli.page.mirrors import MirroredApi, Mirrors, Reader
from cli.page.server import BusyError
from cli.page.why import explain_pod
from cli.session import Session, evaluator
from dra.cel.questions import Evaluator
from dra.common.resources import ObjectKey
from dra.monitoring.server import Pace
from dra.sandbox.process import SandboxError

_MOST_ASK = 4
"""Explanations that are waited for; they are worked out one after the other."""


class ClusterSource:
    """The mirrored cluster; ``find_reader`` tells whose a token is."""

    def __init__(
        self,
        session: Session,
        mirrors: Mirrors,
        content: Content,
        *,
        find_reader: Callable[[str], Reader | None],
        evaluator: Evaluator,
    ) -> None:
        self._session, self._mirrors, self._content = session, mirrors, content
        self.reader = find_reader
        self._evaluator = evaluator
        self._pace = Pace()
        self._few = threading.BoundedSemaphore(_MOST_ASK)

    def data(self, reader: Reader, since: str, namespace: str) -> Mapping[str, Any]:
        """Changes since a version, and what the reader cannot see or what is old."""
        rights = reader.rights(namespace or self._session.namespace)
        found = self._content.since(since, rights)
        return {**found, "hidden": rights.hidden, **self._mirrors.troubles()}

    def why(self, reader: Reader, pod: ObjectKey) -> Mapping[str, Any] | None:
        """Reasons why a pod waits, one at a time. Raises BusyError where too many ask."""
        if not self._few.acquire(blocking=False):
            raise BusyError
        api = MirroredApi(self._session.api, self._mirrors, reader)
        session = replace(self._session, api=api, namespace=pod[0])
        try:
            return self._pace.call(lambda: explain_pod(session, pod, self._evaluator))
        except SandboxError as error:
            raise BusyError from error
        finally:
            self._few.release()


def only_with(secret: str, reader: Reader) -> Callable[[str], Reader | None]:
    """The one reader, who has ``secret``."""
    return lambda token: reader if hmac.compare_digest(token.encode(), secret.encode()) else None


@contextmanager
def mirrored(session: Session, *, namespace: str) -> Iterator[tuple[Mirrors, Content, Evaluator]]:
    """Mirrors that run for as long as the block does; of ``namespace`` where not all is allowed."""
    content = Content(session.driver, time.monotonic)
    mirrors = Mirrors(session.api, content, driver=session.driver, namespace=namespace)
    with evaluator() as asked:
        mirrors.start()
        try:
            yield mirrors, content, asked
        finally:
            mirrors.stop()
