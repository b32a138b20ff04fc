"""TLS in front of an API server that speaks plain HTTP, and the service account of a pod for it."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.dra.kube.connect.certificates import make_certificates


@dataclass(frozen=True)
class PodPlace:
    """What a pod is given to reach the API server."""

    account: Path
    environment: dict[str, str]


@contextlib.contextmanager
def in_a_pod(target: tuple[str, int], folder: Path) -> Iterator[PodPlace]:
    """A place in a cluster whose API server is at ``target``; its files are in ``folder``."""
    folder.mkdir()
    certificates = make_certificates(folder)
    (folder / "token").write_text("token\n")
    context = certificates.server_context()
    context.verify_mode = ssl.CERT_NONE
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=_serve, args=(listener, context, target), daemon=True).start()
        port = str(listener.getsockname()[1])
        yield PodPlace(
            folder, {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": port}
        )


def _serve(listener: socket.socket, context: ssl.SSLContext, target: tuple[str, int]) -> None:
    while True:
        try:
            client, _ = listener.accept()
        except OSError:
            return
        threading.Thread(target=_relay, args=(client, context, target), daemon=True).start()


def _relay(client: socket.socket, context: ssl.SSLContext, target: tuple[str, int]) -> None:
    with (
        contextlib.suppress(OSError),
        socket.create_connection(target) as server,
        context.wrap_socket(client, server_side=True) as secure,
    ):
        back = threading.Thread(target=copy, args=(server, secure), daemon=True)
        back.start()
        copy(secure, server)
        back.join()


def copy(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_RDWR)
