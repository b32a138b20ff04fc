"""Memory of the controller: ``python -m hack.bench.memory``.

The program itself, in a process of its own, mirrors a full cluster from a server that knows no more
of an API than lists in pages and watches. ``peak`` is the most that it ever had (VmHWM),
``settled`` what it has when all is mirrored, and again after every pod has changed once.

It connects as in a pod, only without TLS. Every object of the cluster carries what it carries in
practice and the controller does not read: managed fields, owners, labels, status by container and
by device.
"""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any
from urllib.parse import parse_qs, urlsplit

import click
import msgspec

from dra.claims.allocation import AllocatedDevice, write_allocation
from dra.claims.classes import generated_classes
from dra.common.resources import (
    DEVICE_CLASSES,
    MIG_NODES,
    NODES,
    PODS,
    RESOURCE_CLAIMS,
    Obj,
    Resource,
)
from dra.gpu.geometry import Geometry, Placement, Profile
from dra.gpu.inventory import ClaimRef, Instance, InstanceState
from dra.gpu.mignode import to_mignode
from dra.gpu.names import DEFAULT_DRIVER, mig_device
from hack.bench import objects
from hack.bench.objects import GPUS_PER_NODE, geometry

VERSION = "1000000"
"""The resourceVersion of all lists."""

_NOW = "2026-01-01T00:00:00Z"
_encode = msgspec.json.encode


@dataclass(frozen=True)
class FullCluster:
    """``nodes`` of eight GPUs, with ``claims`` slices of the smallest profile spread over them.

    The objects of a resource are numbered from zero.
    """

    shape: Geometry
    nodes: int
    claims: int

    def sizes(self) -> Mapping[Resource, int]:
        """Number of objects of each resource."""
        return {
            DEVICE_CLASSES: len(self._classes),
            NODES: self.nodes,
            MIG_NODES: self.nodes,
            RESOURCE_CLAIMS: self.claims,
            PODS: self.claims,
        }

    def body(self, resource: Resource, number: int) -> Obj:
        """One object as the API server sends it."""
        made: dict[Resource, Callable[[int], Obj]] = {
            DEVICE_CLASSES: self._classes.__getitem__,
            NODES: lambda n: objects.node(_node(n)),
            MIG_NODES: self._mignode,
            RESOURCE_CLAIMS: self._claim,
            PODS: self._pod,
        }
        order = [*made].index(resource)
        return objects.as_stored(resource, made[resource](number), order * 100_000 + number + 1)

    @cached_property
    def _classes(self) -> list[Obj]:
        return list(generated_classes(DEFAULT_DRIVER, [p.name for p in self.shape.profiles]))

    @cached_property
    def _profile(self) -> Profile:
        return min(self.shape.profiles, key=lambda p: (p.memory_slices, p.compute_slices))

    @cached_property
    def _starts(self) -> tuple[Placement, ...]:
        """Starts of slices of the profile side by side, as many as a GPU has compute slices for."""
        return self._profile.placements[: self.shape.compute_slices // self._profile.compute_slices]

    def _where(self, claim: int) -> tuple[int, int, Placement]:
        """Node, GPU and placement of a claim; the emptiest GPU first."""
        rest, node = divmod(claim, self.nodes)
        start, minor = divmod(rest, GPUS_PER_NODE)
        return node, minor, self._starts[start]

    def _mignode(self, node: int) -> Obj:
        name = _node(node)
        held: dict[int, list[Instance]] = {}
        for claim in range(node, self.claims, self.nodes):
            _, minor, placement = self._where(claim)
            held.setdefault(minor, []).append(self._instance(claim, placement))
        inventory = objects.inventory(name, self.shape)
        gpus = tuple(replace(g, instances=tuple(held.get(g.minor, ()))) for g in inventory.gpus)
        return to_mignode(replace(inventory, gpus=gpus), transition_time=_NOW)

    def _instance(self, claim: int, placement: Placement) -> Instance:
        number = placement.start
        return Instance(
            placement,
            InstanceState.PREPARED,
            profile_id=self._profile.id,
            profile=self._profile.name,
            gpu_instance_id=7 + number,
            compute_instance_id=0,
            uuid=f"MIG-{claim:08x}-58a8-5e4d-9a6b-0a6a9a3d0b4e",
            claim=ClaimRef("team-a", _claim_name(claim), _uid(RESOURCE_CLAIMS, claim)),
        )

    def _claim(self, number: int) -> Obj:
        node, minor, placement = self._where(number)
        profile = self._profile
        device = str(mig_device(minor, profile.name, profile_id=profile.id, start=placement.start))
        pool = f"{_node(node)}-gpus"
        chosen = [AllocatedDevice("r", DEFAULT_DRIVER, pool, device)]
        pod = {"name": _pod_name(number), "uid": _uid(PODS, number)}
        owner = {"apiVersion": "v1", "kind": "Pod", **pod, "controller": True}
        ready = {"type": "Ready", "status": "True", "reason": "Prepared", "message": "slice made"}
        prepared = {
            "driver": DEFAULT_DRIVER,
            "pool": pool,
            "device": device,
            "conditions": [{**ready, "lastTransitionTime": _NOW}],
            "data": {"migUUID": f"MIG-{number:08x}-58a8-5e4d-9a6b-0a6a9a3d0b4e"},
        }
        return {
            **objects.claim(_claim_name(number), profile.name),
            "metadata": {
                "name": _claim_name(number),
                "generateName": f"{_pod_name(number)}-gpu-",
                "namespace": "team-a",
                "uid": _uid(RESOURCE_CLAIMS, number),
                "annotations": {"resource.kubernetes.io/pod-claim-name": "gpu"},
                "ownerReferences": [{**owner, "blockOwnerDeletion": True}],
                "finalizers": [objects.FINALIZER],
            },
            "status": {
                "allocation": write_allocation(chosen, _node(node), timestamp=_NOW),
                "reservedFor": [{"resource": "pods", **pod}],
                "devices": [prepared],
            },
        }

    def _pod(self, number: int) -> Obj:
        node, _, _ = self._where(number)
        body = objects.pod(_pod_name(number), resourceClaimTemplateName="slice")
        job = {"apiVersion": "batch/v1", "kind": "Job", "name": f"job-{number // 8}"}
        running = {"running": {"startedAt": _NOW}}
        container = {
            "name": "c",
            "state": running,
            "lastState": {},
            "ready": True,
            "restartCount": 0,
            "image": "none",
            "imageID": f"sha256:{number:064x}",
            "started": True,
        }
        return {
            **body,
            "metadata": {
                **body["metadata"],
                "namespace": "team-a",
                "uid": _uid(PODS, number),
                "ownerReferences": [{**job, "uid": _uid(PODS, number // 8), "controller": True}],
            },
            "spec": {**body["spec"], "nodeName": _node(node)},
            "status": {
                "phase": "Running",
                "startTime": _NOW,
                "podIP": f"10.0.{number // 250 % 250}.{number % 250}",
                "containerStatuses": [container],
                "resourceClaimStatuses": [
                    {"name": "gpu", "resourceClaimName": _claim_name(number)}
                ],
            },
        }


def _node(number: int) -> str:
    return f"node-{number:04}"


def _pod_name(number: int) -> str:
    return f"train-{number // 8}-{number:05}"


def _claim_name(number: int) -> str:
    return f"{_pod_name(number)}-gpu-{number % 9999:04}"


def _uid(resource: Resource, number: int) -> str:
    return f"{number:08x}-{len(resource.plural):04x}-4b1e-9c55-0242ac120002"


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
