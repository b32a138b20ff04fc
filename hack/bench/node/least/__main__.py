"""Driver that does the least for a claim, by which the node program is measured.

``python -m hack.bench.node.least`` answers kubelet's calls with what no driver in this language can
do without, by the plugin's own means: its gRPC server, its requests, pynvml, files written whole.
It works on one claim at a time, checks nothing, and a later process knows nothing of it.
"""

from __future__ import annotations

import signal
import threading
from pathlib import Path

import click
import msgspec
import pynvml

import sim.nvml
from api.kubelet.dra.v1 import api_pb2_grpc as v1_grpc
from dra.kube.client import KubeApi
from hack.bench.node.least.driver import Least
from hack.bench.node.least.telling import Telling
from kubeletplugin.sockets import SocketServer

PARTS = "parts.json"
"""File of its directory, written at its end: milliseconds of each Prepare, by part."""
_FILE = click.Path(path_type=Path)


@click.command()
@click.option("--socket", type=_FILE, required=True, help="Where it serves kubelet.")
@click.option("--kubeconfig", required=True, help="The API server.")
@click.option("--host-root", type=_FILE, required=True, help="Root of the driver's /proc.")
@click.option("--directory", type=_FILE, required=True, help="Where its files go.")
@click.option("--simulator", type=_FILE, help="Simulated machine; else the library is loaded.")
@click.option("--tells", is_flag=True, help="Write claims' statuses and the MigNode as well.")
def main(  # noqa: PLR0913 - the flags
    *,
    socket: Path,
    kubeconfig: str,
    host_root: Path,
    directory: Path,
    simulator: Path | None,
    tells: bool,
) -> None:
    """Serve until SIGTERM, then write the parts of all Prepares."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    if simulator is not None:
        sim.nvml.install(simulator)
    pynvml.nvmlInit()
    api = KubeApi.connect(kubeconfig, user_agent="least")
    telling = Telling(api) if tells else None
    least = Least(api, host=host_root, directory=directory, telling=telling)
    server = SocketServer(
        socket,
        register=lambda grpc: v1_grpc.add_DRAPluginServicer_to_server(least, grpc),
        workers=2,
    )
    server.start()
    stop.wait()
    server.stop(1)
    if telling is not None:
        telling.stop()
    (directory / PARTS).write_bytes(msgspec.json.encode(least.parts))
    api.close()


if __name__ == "__main__":
    main()
