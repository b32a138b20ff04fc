"""Memory of the controller: ``python -m hack.bench.memory``.

The program itself, in a process of its own, mirrors a full cluster from a server that knows no more
of an API than lists in pages and watches. ``peak`` is the most that it ever had (VmHWM),
``settled`` what it has when all is mirrored, and again after every pod has changed once.

It connects as in a pod, only without TLS.
"""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any
from urllib.parse import parse_qs, urlsplit

import click
import msgspec

from dra.common.resources import DEVICE_CLASSES, PODS, RESOURCE_CLAIMS, Resource
from hack.bench.control.fullcluster import VERSION, FullCluster
from hack.bench.fleets.fleet import geometry

_encode = msgspec.json.encode


def resident_mib(pid: int | str = "self", field: str = "VmRSS") -> int:
    """Memory of a process in MiB, or with ``VmHWM`` the most that it ever had."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    found = next(line.split()[1] for line in lines if line.startswith(f"{field}:"))
    return int(found) >> 10


class Server(ThreadingHTTPServer):
    """Serves a cluster. Once ``changes`` is set every pod changes once, then ``changed`` is set."""

    daemon_threads = True

    def __init__(self, cluster: FullCluster) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        # Made beforehand: the controller waits for a page for seconds only.
        self.objects = {
            resource: [_encode(cluster.body(resource, n)) for n in range(count)]
            for resource, count in cluster.sizes().items()
        }
        self.by_path = {resource.path(): resource for resource in self.objects}
        self.changes = threading.Event()
        self.changed = threading.Event()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def do_GET(self) -> None:
        """Discovery, a page of a list, or a watch."""
        url = urlsplit(self.path)
        query = {key: values[0] for key, values in parse_qs(url.query).items()}
        resource = self.server.by_path.get(url.path)
        if url.path == f"/apis/{RESOURCE_CLAIMS.group}":
            self._answer({"versions": [{"version": RESOURCE_CLAIMS.version}]})
        elif resource is None:  # nor any other API than that of the objects above
            self._answer({"kind": "Status", "code": 404, "reason": "NotFound"}, status=404)
        elif "watch" in query:
            self._watch(resource)
        else:
            self._page(resource, int(query.get("continue", 0)), int(query.get("limit", 0)))

    def do_POST(self) -> None:
        """Events and the like are taken and forgotten; of a class, it is said that it is stored."""
        body = self.rfile.read(int(self.headers["Content-Length"]))
        stored = DEVICE_CLASSES.plural in self.path
        self._answer(msgspec.json.decode(body) if stored else {})

    do_PATCH = do_PUT = do_POST  # noqa: N815 - the names that http.server calls

    def log_message(self, *_: Any) -> None:
        """Say nothing."""

    def _page(self, resource: Resource, start: int, limit: int) -> None:
        objects = self.server.objects[resource]
        end = start + limit if limit else len(objects)
        metadata = {"resourceVersion": VERSION}
        if end < len(objects):
            metadata["continue"] = str(end)
        items = [msgspec.Raw(encoded) for encoded in objects[start:end]]
        self._answer({"metadata": metadata, "items": items})

    def _watch(self, resource: Resource) -> None:
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for event in self._events(resource):
            self.wfile.write(b"%x\r\n%b\r\n" % (len(event), event))
            self.wfile.flush()

    def _events(self, resource: Resource) -> Iterator[bytes]:
        if resource is PODS:
            self.server.changes.wait()
            for number, encoded in enumerate(self.server.objects[PODS]):
                body = msgspec.json.decode(encoded)
                body["metadata"]["resourceVersion"] = str(int(VERSION) + number)
                yield _encode({"type": "MODIFIED", "object": body}) + b"\n"
            self.server.changed.set()
        threading.Event().wait()

    def _answer(self, body: dict[str, Any], *, status: int = 200) -> None:
        encoded = _encode(body)
        self.send_response(status)
        self.send_header("Content-Length", str(len(encoded)))
        self.end_headers()
        self.wfile.write(encoded)


_CONTROLLER = """
import sys
from dra.kube import client
from dra.kube.kubeconfig import Access
client.pod_access = lambda *_: Access(sys.argv[1], "the bench")
from controller.cli import main
main(["--no-leader-elect", "--metrics-address", "127.0.0.1:0"])
"""


@click.command()
@click.option("--nodes", default=1000, show_default=True, help="Nodes of eight GPUs.")
@click.option("--claims", default=40_000, show_default=True, help="Claims in use, each of a pod.")
@click.option("--product", default="A100-SXM4-80GB", show_default=True)
@click.option("--settle", default=5.0, show_default=True, help="Seconds before it is looked at.")
def main(nodes: int, claims: int, product: str, settle: float) -> None:
    """Measure the controller as a process."""
    server = Server(FullCluster(geometry(product), nodes, claims))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_address[1]}"
    command = [sys.executable, "-c", _CONTROLLER, url]
    with (
        server,
        TemporaryFile("a+") as log,
        subprocess.Popen(command, stderr=log) as process,
    ):
        try:
            began = time.monotonic()
            _wait_for_ready(process, log)
            seconds = time.monotonic() - began
            click.echo(f"{nodes} nodes, {claims} claims, ready after {seconds:.0f} s")
            click.echo(f"{'':10}{'settled':>10}{'peak':>10}  MiB")
            _show(process, "mirrored", settle)
            server.changes.set()
            server.changed.wait()
            _show(process, "changed", settle)
        finally:
            process.terminate()
            server.shutdown()


def _wait_for_ready(process: subprocess.Popen[bytes], log: IO[str]) -> None:
    said = ""
    while not re.search(r"\bready\b", said):
        if process.poll() is not None:
            raise click.ClickException(f"the controller ended: {said[-2000:]}")
        time.sleep(0.1)
        log.seek(0)
        said = log.read()


def _show(process: subprocess.Popen[bytes], when: str, settle: float) -> None:
    time.sleep(settle)
    rss, peak = (resident_mib(process.pid, field) for field in ("VmRSS", "VmHWM"))
    click.echo(f"{when:10}{rss:>10}{peak:>10}")


if __name__ == "__main__":
    main()
