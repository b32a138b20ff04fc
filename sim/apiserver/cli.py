"""``python -m sim apiserver``: run the server until SIGTERM."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from datetime import UTC, datetime
from pathlib import Path

import click
import yaml

from sim.apiserver.api import Api
from sim.apiserver.custom import serve_definitions
from sim.apiserver.deletion import collect_garbage
from sim.apiserver.kinds import DEFAULT_GATES, Environment
from sim.apiserver.registry import Registry
from sim.apiserver.requests import Target, WriteOptions
from sim.apiserver.resources import NAMESPACES, Catalogue
from sim.apiserver.server import serve_connection
from sim.apiserver.store import Store

_LOOPBACK = "127.0.0.1"
_HEAD_LIMIT = 1 << 20
_FIRST_NAMESPACES = ("default", "kube-node-lease", "kube-public", "kube-system")


def build(*, history: int, gates: frozenset[str]) -> Api:
    """An API with the namespaces that every cluster begins with."""
    env = Environment(now=lambda: datetime.now(UTC), store=Store(history=history), gates=gates)
    catalogue = Catalogue()
    registry = Registry(env)
    serve_definitions(env, catalogue)
    for name in _FIRST_NAMESPACES:
        target = Target(NAMESPACES, "", name)
        body = {"metadata": {"name": name}}
        registry.create(target, body, WriteOptions(manager="kube-apiserver"), [])
    return Api(registry, catalogue)


def kubeconfig(url: str) -> str:
    """A kubeconfig for the server; any credentials would do, so there are none."""
    name = "sim"
    return yaml.safe_dump(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": name, "cluster": {"server": url}}],
            "users": [{"name": name, "user": {}}],
            "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
            "current-context": name,
        }
    )


def parse_gates(text: str) -> frozenset[str]:
    """Reads `Gate=true,Gate=false` on top of what 1.36 has on.

    Raises:
        click.BadParameter: an entry has another form.
    """
    gates = set(DEFAULT_GATES)
    for entry in filter(None, text.split(",")):
        name, _, value = entry.partition("=")
        if value not in ("true", "false"):
            raise click.BadParameter(f"{entry}: write it as {name}=true or {name}=false")
        (gates.add if value == "true" else gates.discard)(name)
    return frozenset(gates)


@click.command("apiserver")
@click.option("--port", default=0, show_default=True, help="Port on 127.0.0.1; 0 takes a free one.")
@click.option(
    "--kubeconfig-out",
    type=click.Path(path_type=Path),
    help="Where to write the kubeconfig once the server listens; default: print it.",
)
@click.option(
    "--history",
    default=10_000,
    show_default=True,
    help="Changes kept for each resource; a watch from before them gets 410 Gone.",
)
@click.option(
    "--feature-gates",
    default="",
    help="For example DRAPartitionableDevices=false,DRADeviceTaints=false",
)
def main(port: int, kubeconfig_out: Path | None, history: int, feature_gates: str) -> None:
    """Serve an embedded Kubernetes API on loopback, in memory."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    api = build(history=history, gates=parse_gates(feature_gates))
    asyncio.run(_serve(api, port, kubeconfig_out))


async def _serve(api: Api, port: int, kubeconfig_out: Path | None) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    connections: set[asyncio.Task[None]] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is not None:
            connections.add(task)
            task.add_done_callback(connections.discard)
        with contextlib.suppress(asyncio.CancelledError):
            await serve_connection(api, reader, writer)

    try:
        server = await asyncio.start_server(
            connected, _LOOPBACK, port, limit=_HEAD_LIMIT, backlog=512
        )
    except OSError as failure:
        raise click.ClickException(
            f"cannot listen on {_LOOPBACK}:{port}: {failure.strerror}; choose another --port"
        ) from None
    collector = asyncio.create_task(collect_garbage(api.registry, api.catalogue))
    _announce(kubeconfig_out, server.sockets[0].getsockname()[1])
    await stop.wait()
    server.close()
    pending = [*connections, collector]
    for task in pending:
        task.cancel()
    await asyncio.gather(*pending, return_exceptions=True)


def _announce(path: Path | None, port: int) -> None:
    text = kubeconfig(f"http://{_LOOPBACK}:{port}")
    if path is None:
        click.echo(text)
        return
    # Readers wait for the file: it has to be whole when it is there.
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    unfinished.write_text(text)
    unfinished.replace(path)
    click.echo(f"listening on http://{_LOOPBACK}:{port}, kubeconfig in {path}")
