"""Connections to the webhook: whoever opens many and says nothing keeps no review waiting."""

from __future__ import annotations

import datetime as dt
import http.client
import socket
import ssl
import threading
from contextlib import ExitStack

import pytest

from controller.webhook.certificates import make
from controller.webhook.server import HEALTH, WebhookServer
from tests.helpers.waiting import wait_for

PEER = 64


def test_silent_connections_have_few_threads_and_the_next_is_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("controller.webhook.server._Handler.timeout", 600.0)  # nobody goes himself
    server = WebhookServer(("127.0.0.1", 0), driver="mig.dra.dev")
    served = make(["127.0.0.1"], now=dt.datetime.now(dt.UTC), lifetime=dt.timedelta(days=1))
    server.serve(served)
    before = threading.active_count()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        with ExitStack() as stack:
            for _ in range(PEER + 16):
                stack.enter_context(socket.create_connection(("127.0.0.1", server.server_port)))
            context = ssl.create_default_context(cadata=served.authorities.decode())
            asked = http.client.HTTPSConnection("127.0.0.1", server.server_port, context=context)
            asked.request("GET", HEALTH)
            assert asked.getresponse().read() == b"ok"
            wait_for("end of threads", lambda: threading.active_count() <= before + 2 + PEER)
            asked.close()
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
