"""A machine's GPU as it is, in one file: ``python -m hack.hardware``, as root.

Reads what NVML answers, has the node program serve the GPU with kubelet played, and runs processes
with exactly what its CDI devices give. No setting of a GPU is changed: no mode, no clocks, no
reset. Slices are made and removed with ``--slices`` alone, on GPUs in MIG mode on which nothing is.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import click

from dra.gpu.inventory import Gpu
from dra.gpu.mignode import from_mignode
from dra.gpu.names import mig_device
from hack.hardware import answers
from hack.hardware.container import COMMAND_SECONDS, PROBE, Added, Containers
from hack.hardware.node import Node, running
from kubeletplugin.nvml.errors import NvmlError
from sim.kubelet.plugins import KubeletError
from sim.processes import ClusterError

_WHOLE_SECONDS = 480.0
_NEEDED = "libnvidia-ptxjitcompiler"
"""Without it a kernel that is not compiled for the GPU cannot be loaded."""
_PROBE = (str(Path(sys.executable).resolve()), f"/{PROBE.name}")
"""The command of the probe in a container."""
_MPS_LIMITS = {"activeThreadPercentage": 50, "pinnedDeviceMemoryLimit": "1Gi"}
_FAILURES = (ClusterError, KubeletError, NvmlError, OSError, subprocess.SubprocessError)


class Report:
    """The file's content; it is written after each part, so that an early end leaves something."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._end = time.monotonic() + _WHOLE_SECONDS
        self._parts: dict[str, Any] = {}
        self._head = {
            "taken": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
            "machine": f"{platform.machine()}, Linux {platform.release()}, {os.cpu_count()} cores",
        }

    def part(self, name: str, act: Callable[[], Any]) -> Any:
        """Do one part of the work, unless the time is over; its result, None where it failed."""
        began = time.monotonic()
        result: Any = None
        if began > self._end:
            row: dict[str, Any] = {"skipped": f"{_WHOLE_SECONDS:g} s are over"}
        else:
            try:
                result = act()
                row = {"found": result}
            except _FAILURES as error:
                row = {"failed": f"{type(error).__name__}: {error}"}
        row["seconds"] = round(time.monotonic() - began, 1)
        self._parts[name] = row
        self._path.write_text(json.dumps({**self._head, "parts": self._parts}, indent=1) + "\n")
        words = row.get("failed") or row.get("skipped") or "done"
        click.echo(f"{name:<28}{row['seconds']:>6} s  {words.splitlines()[0]}")
        return result


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Values of the command line, as its help says."""

    host_root: Path
    driver_root: str
    slices: bool
    seconds: float

    @property
    def flags(self) -> tuple[str, ...]:
        """Options of the node program that name its roots."""
        return ("--host-root", str(self.host_root), "--driver-root", self.driver_root)


@click.command()
@click.option("--output", type=click.Path(path_type=Path, dir_okay=False), default="hardware.json")
@click.option("--host-root", type=click.Path(path_type=Path), default=Path("/"), show_default=True)
@click.option("--driver-root", default="/", show_default=True, help="Where the driver's files are.")
@click.option("--slices", is_flag=True, help="Make and remove slices on idle GPUs in MIG mode.")
@click.option("--seconds", default=60.0, show_default=True, help="How long the GPU is served.")
def main(output: Path, **given: Any) -> None:
    """Write down what this machine's GPU shows."""
    if os.geteuid():
        raise click.ClickException("containers and device nodes need root: run it as root")
    report, asked = Report(output), Asked(**given)
    report.part("answers of NVML", answers.profiles)
    report.part("times of NVML", answers.times)
    with tempfile.TemporaryDirectory(prefix="h", dir="/tmp") as folder:
        root = Path(folder)
        report.part("check", partial(_check, root, asked))
        report.part("node program", partial(_node, report, root, asked))
    click.echo(f"all of it is in {output}")


def _check(root: Path, asked: Asked) -> Any:
    """Report of ``kubeletplugin check``, with ``slices`` of trials with each profile of a GPU."""
    path = root / "check.json"
    places = ("--kubelet-root", str(root / "checked"), "--cdi-root", str(root / "cdi"))
    command = [sys.executable, "-m", "kubeletplugin", *asked.flags, *places]
    command += ["check", "--json", str(path), *(["--create", "0", "--yes"] if asked.slices else [])]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=180)
    if not path.exists() or not path.stat().st_size:
        raise ClusterError(done.stderr.strip() or done.stdout.strip())
    return json.loads(path.read_bytes())


def _node(report: Report, root: Path, asked: Asked) -> Any:
    """All parts that need the node program."""
    containers = Containers(root, asked.host_root)
    with running(root, asked.host_root, asked.flags, containers) as (node, shown):
        began, before = time.monotonic(), node.size()
        gpus = from_mignode(shown).gpus
        whole = next((g for g in gpus if not g.mig_enabled and not g.unavailable), None)
        if whole is not None:
            alone = partial(_in_containers, node, containers, whole.name, lacking=_NEEDED)
            report.part("whole GPU", alone)
            report.part("MPS", partial(_mps, node, containers, whole.name))
        for profile, device in _slices(gpus) if asked.slices else ():
            report.part(f"slice {profile}", partial(_in_containers, node, containers, device))
        time.sleep(max(0.0, asked.seconds - (time.monotonic() - began)))
        return {
            "containers": containers.way,
            "status": shown["status"],
            "at first": before,
            "at the end": node.size(),
            "served_seconds": round(time.monotonic() - began, 1),
        }


def _slices(gpus: Sequence[Gpu]) -> Iterator[tuple[str, str]]:
    """Profile and device at the first placement of each profile of an idle GPU in MIG mode."""
    idle = (g for g in gpus if g.mig_enabled and not g.instances and not g.unavailable)
    for gpu in islice(idle, 1):
        for each in gpu.geometry.profiles if gpu.geometry else ():
            start = each.placements[0].start
            device = mig_device(gpu.minor, each.name, profile_id=each.id, start=start)
            yield each.name, str(device)


def _in_containers(node: Node, containers: Containers, device: str, *, lacking: str = "") -> Any:
    """Results of programs that get this device, also without the library that is ``lacking``."""
    with node.prepared(device) as (added, took):
        found = {
            "added": asdict(added),
            "nvidia-smi": containers.run(["nvidia-smi", "-L"], added),
            "compute": _probe(containers, "compute", added),
            "instances": answers.of_instances(),
        }
        if lacking:
            rest = added.without(lacking)
            found[f"compute without {lacking}"] = _probe(containers, "compute", rest)
    return {**found, "milliseconds": took}


def _mps(node: Node, containers: Containers, device: str) -> Any:
    """Two processes that share a GPU by MPS under limits: what they may take."""
    sharing = {"strategy": "MPS", "mps": _MPS_LIMITS}
    parameters = {"apiVersion": "mig.dra.dev/v1alpha1", "kind": "GpuConfig", "sharing": sharing}
    with node.prepared(device, parameters) as (added, took):
        held = containers.start([*_PROBE, "hold"], added)
        found = {
            "limits": _MPS_LIMITS,
            "compute beside another": _probe(containers, "compute", added),
            "memory beside another": _probe(containers, "memory", added),
        }
        output, _ = held.communicate(timeout=COMMAND_SECONDS)  # which ends its input
        found["the other"] = _read(output)
    return {**found, "milliseconds": took}


def _probe(containers: Containers, what: str, added: Added) -> Any:
    return _read(containers.run([*_PROBE, what], added)["output"])


def _read(output: str) -> Any:
    try:
        return json.loads(output.splitlines()[-1])
    except (ValueError, IndexError):
        return {"failed": output}


if __name__ == "__main__":
    main()
