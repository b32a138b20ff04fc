"""Speed of the node program: ``python -m hack.bench.node``.

Kubelet's calls are played over the plugin's socket. The plugin runs in a process of its own, over a
compiled ``libnvidia-ml.so.1`` without hardware or any other; the API server in another: the
simulated one, or with KUBEBUILDER_ASSETS a real one. Everything is compared with a driver that does
the least, in the same run and at the same pace. Nothing else should run on the machine; where
something does, trust ratios and CPU time.
"""

from __future__ import annotations

import os
import platform
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import click

from api.crds import mignode_definition
from dra.common.resources import CUSTOM_RESOURCE_DEFINITIONS, NODES
from dra.gpu.inventory import ClaimRef
from dra.kube.client import KubeApi
from hack.bench.node import library
from hack.bench.node.measures import (
    LOADING,
    Driver,
    burst,
    by_turns,
    cycles,
    floor,
    least_drivers,
    percentile,
    rest,
    settle,
    smallest_slices,
)
from hack.bench.node.node import (
    Claims,
    Kubelet,
    Place,
    Plugin,
    node_object,
    simulated_api_server,
)
from hack.bench.node.table import (
    MOST,
    RIVAL,
    Row,
    call_rows,
    floor_rows,
    ratios,
    rendered,
    worse,
)
from hack.cluster import controlplane
from hack.cluster.binaries import ASSETS_VARIABLE, find_binaries
from hack.cluster.controlplane import ControlPlane, Setup
from sim.nvml.machine import GpuSpec, Machine
from sim.processes import wait_for

_PRODUCT, _GPUS = "H100-80GB-HBM3", 8
_MIB = 1024
PARTS = ("calls", "bursts", "ahead")
CREATE_MS = 500
LEADS = (0.05, 1.0)
"""Seconds from the allocation to kubelet's call: about the first where nothing holds the pod up,
more where volumes are to be mounted first, or kube-scheduler or kubelet is busy."""
_SHARE = 0.95
_MOST = 20.0
_AHEAD = 20
"""Claims of each row on slices that are there already."""
_FLOOR = 50
"""Claims of each floor."""


@contextmanager
def api_server(root: Path) -> Iterator[Path]:
    """An API server in another process; its kubeconfig."""
    if os.environ.get(ASSETS_VARIABLE):
        binaries = find_binaries(os.environ, home=Path.home())
        with ControlPlane(binaries, root, setup=Setup(scheduling=False, auditing=False)) as plane:
            yield Path(plane.kubeconfig(controlplane.ADMIN))
        return
    with simulated_api_server(root) as kubeconfig:
        yield kubeconfig


@click.command()
@click.option("--nvml", type=click.Path(path_type=Path), help="Another libnvidia-ml.so.1.")
@click.option("--count", default=100, show_default=True, help="Claims of the paced calls.")
@click.option("--cycles", "more", default=1500, show_default=True, help="Claims for the memory.")
@click.option("--pause", default=0.1, show_default=True, help="Seconds between paced calls.")
@click.option("--rest", "seconds", default=30.0, show_default=True, help="Seconds of rest.")
@click.option("--directory", type=click.Path(path_type=Path), help="Where journal and specs go.")
@click.option("--only", "parts", type=click.Choice(PARTS), multiple=True, help="Rows to print.")
@click.option("--check", type=click.Path(path_type=Path), help="A page with a table to compare.")
def main(  # noqa: PLR0913 - the flags
    nvml: Path | None,
    *,
    count: int,
    more: int,
    pause: float,
    seconds: float,
    directory: Path | None,
    parts: tuple[str, ...],
    check: Path | None,
) -> None:
    """Print the table, or with --check what has become worse."""
    with tempfile.TemporaryDirectory(dir=directory, prefix="b") as name:
        root = Path(name)
        machine = Machine.create(root / "hw", [GpuSpec(_PRODUCT)] * _GPUS)
        (machine.directory / "nvml.txt").write_text(library.description(machine))
        chosen = (nvml or library.build(root)).absolute()
        with api_server(root) as kubeconfig:
            api = KubeApi.connect(str(kubeconfig), user_agent="bench", timeout_seconds=30)
            api.create(CUSTOM_RESOURCE_DEFINITIONS, mignode_definition())
            wait_for("the CRD", lambda: _created_node(api))
            place = Place(root, machine.host_root, kubeconfig, chosen, machine.directory)
            rows: list[Row] = []
            parts = parts or PARTS
            if "calls" in parts:
                rows += _calls(
                    place, machine, api, count=count, more=more, pause=pause, seconds=seconds
                )
            for create_ms, gpus in BURSTS if "bursts" in parts else ():
                rows += _burst(replace(place, create_ms=create_ms), machine, api, gpus)
            if "ahead" in parts:
                rows += ahead_rows(place, machine, api, count=min(count, _AHEAD))
            api.close()
    table = rendered(rows)
    click.echo(f"{_machine()}\n\n{table}")
    if check is not None:
        found = worse(ratios(table), ratios(check.read_text()))
        click.echo("\n".join(found) or "no ratio is worse than the stored one")
        sys.exit(1 if found else 0)


BURSTS = ((200, 8), (0, 4), (200, 4), (1000, 4))
"""Milliseconds of creation, and GPUs: eight get one claim each, four get seven each."""


def _calls(  # noqa: PLR0913 - what is measured with
    place: Place,
    machine: Machine,
    api: KubeApi,
    *,
    count: int,
    more: int,
    pause: float,
    seconds: float,
) -> list[Row]:
    plugin, claims = Plugin(place), Claims(api)
    devices = smallest_slices(machine)
    with plugin.running(api):
        kubelet = Kubelet(place.socket)
        rss, threads = plugin.status("VmRSS"), plugin.status("Threads")
        at_rest = rest(plugin, seconds)
        refs = claims.make([devices[i % len(devices)] for i in range(count)])
        rows = _by_turns(place, api, claims, (plugin, kubelet, refs), paces=(pause, 0.0))
        for _ in range(0, more, count):
            cycles(plugin, kubelet, claims, refs, pause=0.0)
        later, most = plugin.status("VmRSS"), plugin.status("Threads")
        claims.delete(refs)
        kubelet.close()
    return [
        *rows,
        Row("registered", "start to registration", plugin.registered, "ms", rival="1,090 ms"),
        Row("shown", "start to MigNode written", plugin.shown, "ms", rival="1,200 ms"),
        Row("rest", "CPU at rest, 8 GPUs", at_rest, "% of a core", most=0.3),
        Row("memory", "memory after start", rss / _MIB, "MiB", most=68),
        Row(
            "memory-later",
            f"memory after {more} cycles",
            later / _MIB,
            "MiB",
            most=70,
            rival="66 MiB",
        ),
        Row("threads", "threads after start", threads, ""),
        Row("threads-later", f"threads after {more} cycles", most, ""),
    ]


def _by_turns(
    place: Place,
    api: KubeApi,
    claims: Claims,
    plugin: tuple[Plugin, Kubelet, Sequence[ClaimRef]],
    *,
    paces: Sequence[float],
) -> list[Row]:
    """The plugin's calls and the floors of each pace, by turns."""
    refs = plugin[2]
    few = refs[:_FLOOR]
    with least_drivers(place, api) as drivers:
        least = [(driver, Kubelet(driver.socket), few) for driver in drivers]
        runs: list[tuple[Driver, Kubelet, Sequence[ClaimRef]]] = [plugin, *least]
        for driver, called, _ in runs:
            cycles(driver, called, claims, refs[:LOADING], pause=0.0)
        turns = [by_turns(runs, claims, pause=pace) for pace in paces]
        for _, called, _ in least:
            called.close()
    floors = [floor(quick, told) for _, quick, told in turns]
    return [*floor_rows(floors), *call_rows([found for found, _, _ in turns], floors)]


def _burst(place: Place, machine: Machine, api: KubeApi, gpus: int) -> list[Row]:
    plugin, claims = Plugin(place), Claims(api)
    each = 1 if gpus == _GPUS else 7
    wanted = [d for d in smallest_slices(machine) if int(d.split("-")[1]) < gpus][: gpus * each]
    with plugin.running(api):
        kubelet = Kubelet(place.socket)
        refs = claims.make(wanted)
        taken = burst(kubelet, refs)
        for ref in refs:
            kubelet.unprepare(ref)
        settle(claims, refs)
        claims.delete(refs)
        kubelet.close()
    what = f"{len(refs)} claims on {gpus} GPUs at once, creation {place.create_ms} ms"
    key = f"burst-{gpus}-{place.create_ms}"
    least = each * place.create_ms
    ratio = taken / least if least else None
    return [Row(key, what, taken, "ms", ratio=ratio, most=MOST[key], rival=RIVAL[key])]


def ahead_rows(place: Place, machine: Machine, api: KubeApi, *, count: int) -> list[Row]:
    """Milliseconds that 95 % of the calls take at most, where a creation takes 500."""
    place = replace(place, create_ms=CREATE_MS)
    devices = smallest_slices(machine)[:count]
    found = [
        Row(
            f"ahead-{lead:g}",
            f"Prepare p95, creation {CREATE_MS} ms, {lead:g} s after the allocation",
            percentile(_after(place, api, devices, lead), _SHARE),
            "ms",
            most=_MOST if lead * 1e3 > CREATE_MS else None,
        )
        for lead in LEADS
    ]
    kept = percentile(_kept(place, api, devices), _SHARE)
    what = f"Prepare p95, creation {CREATE_MS} ms, GPU instance kept of a former claim"
    return [*found, Row("kept", what, kept, "ms", most=_MOST)]


def _after(place: Place, api: KubeApi, devices: Sequence[str], lead: float) -> list[float]:
    plugin, claims = Plugin(place), Claims(api)
    with plugin.running(api):
        kubelet = Kubelet(place.socket)
        taken = []
        for device in devices:
            refs = claims.make([device], expected=True)
            time.sleep(lead)
            taken.append(kubelet.prepare(refs[0]))
            kubelet.unprepare(refs[0])
            settle(claims, refs)
            claims.delete(refs)
        kubelet.close()
    return taken


def _kept(place: Place, api: KubeApi, devices: Sequence[str]) -> list[float]:
    plugin, claims = Plugin(place, "--idle-seconds", "600"), Claims(api)
    with plugin.running(api):
        kubelet = Kubelet(place.socket)
        taken = []
        for device in devices:
            first, second = claims.make([device, device])
            kubelet.prepare(first)
            kubelet.unprepare(first)
            taken.append(kubelet.prepare(second))
            kubelet.unprepare(second)
            settle(claims, [second])
            claims.delete([first, second])
        kubelet.close()
    return taken


def _created_node(api: KubeApi) -> bool:
    return bool(api.create(NODES, node_object()))


def _machine() -> str:
    kind = "real API server" if os.environ.get(ASSETS_VARIABLE) else "simulated API server"
    versions = ", ".join(f"{name} {version(name)}" for name in ("grpcio", "PyYAML"))
    return (
        f"{os.cpu_count()} cores, {platform.machine()}, Linux {platform.release()}, "
        f"Python {platform.python_version()}, {versions}, {kind}"
    )


if __name__ == "__main__":
    main()
