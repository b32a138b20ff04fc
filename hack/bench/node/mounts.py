"""Cost of a driver's mounts at a container's start: ``python -m hack.bench.node.mounts``, as root.

A simulated host with the files of a whole driver, the edits that a claim's CDI spec has for them,
and a real runc (in ``PATH``, or ``--runc``) that starts a container with and without these mounts,
by turns. Without runc, the same system calls are made in a mount namespace. What is printed is the
tenth part of the starts that was fastest: what else runs on the machine only adds to it.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from cdi.spec import Edits, Mount, joined
from kubeletplugin.host.driver.hooks import NEVER
from kubeletplugin.host.driversearch import DriverSearch
from kubeletplugin.host.roots import Roots
from sim.nvml.files.driverpackage import install
from sim.nvml.gpus.assembly import DRIVER_VERSION

_OPTIONS = ["rbind", "rprivate", "ro", "nosuid", "nodev"]
_NOSUID_NODEV_RO, _REMOUNT, _BIND, _RECURSIVE = 0x7, 0x20, 0x1000, 0x4000
_PRIVATE = 0x40000
_NEW_MOUNTS = 0x20000


def driver_edits(host: Path) -> dict[str, Edits]:
    """The edits for the kinds of devices, each with what every container gets."""
    install(host, DRIVER_VERSION)
    roots = Roots(host=host, driver=host, cdi=host, kubelet=host, state=host)
    files = DriverSearch(roots, hook=NEVER).find(DRIVER_VERSION)
    common = files.common
    return {
        "no engines": common,
        "video": joined(common, files.video),
        "graphics": joined(common, files.video, files.graphics()),
    }


def runc_start(runc: str, bundle: Path) -> Callable[[Sequence[Mount]], float]:
    """Seconds to run a container that ends at once, with some mounts."""
    (bundle / "rootfs").mkdir()
    source = "int main(void) { return 0; }"
    target = str(bundle / "rootfs/nothing")
    command = ["cc", "-static", "-x", "c", "-", "-o", target]
    subprocess.run(command, check=True, input=source, text=True)
    subprocess.run([runc, "spec"], check=True, cwd=bundle)
    config: dict[str, Any] = json.loads((bundle / "config.json").read_text())
    config["process"] |= {"terminal": False, "args": ["/nothing"]}
    config["root"]["readonly"] = False
    plain = config["mounts"]
    count = 0

    def start(mounts: Sequence[Mount]) -> float:
        nonlocal count
        count += 1
        shutil.rmtree(bundle / "rootfs/usr", ignore_errors=True)
        shutil.rmtree(bundle / "rootfs/etc", ignore_errors=True)
        config["mounts"] = plain + [
            {
                "destination": m.container_path,
                "source": m.host_path,
                "type": "bind",
                "options": _OPTIONS,
            }
            for m in mounts
        ]
        (bundle / "config.json").write_text(json.dumps(config))
        began = time.perf_counter()
        subprocess.run(
            [runc, "--root", str(bundle / "state"), "run", f"mounts-{count}"],
            check=True,
            cwd=bundle,
            stdout=subprocess.DEVNULL,
        )
        return time.perf_counter() - began

    return start


def bare_start(folder: Path) -> Callable[[Sequence[Mount]], float]:
    """Seconds for the same mounts in a mount namespace of their own."""
    libc = ctypes.CDLL(None, use_errno=True)

    def call(source: str, target: str, flags: int) -> None:
        if libc.mount(source.encode(), target.encode(), b"", ctypes.c_ulong(flags), None):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), target)

    def start(mounts: Sequence[Mount]) -> float:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            began = time.perf_counter()
            libc.unshare(_NEW_MOUNTS)
            call("none", "/", _PRIVATE | _RECURSIVE)
            for mount in mounts:
                target = folder / mount.container_path.lstrip("/")
                target.parent.mkdir(parents=True, exist_ok=True)
                target.touch()
                call(mount.host_path, str(target), _BIND | _RECURSIVE)
                call("none", str(target), _PRIVATE | _RECURSIVE)
                call("none", str(target), _BIND | _REMOUNT | _NOSUID_NODEV_RO)
            os.write(writer, str(time.perf_counter() - began).encode())
            os._exit(0)
        os.close(writer)
        os.waitpid(child, 0)
        seconds = float(os.read(reader, 64))
        os.close(reader)
        return seconds

    return start


def fast(seconds: Sequence[float]) -> float:
    """The first decile."""
    return statistics.quantiles(seconds, n=10)[0]


@click.command()
@click.option("--rounds", default=100, show_default=True, help="Starts of each kind.")
@click.option("--runc", default=shutil.which("runc") or "", help="The runtime's program.")
def main(rounds: int, runc: str) -> None:
    """Print mounts and milliseconds for each kind of device."""
    if os.geteuid() != 0:
        sys.exit("mounts need root")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        host = folder / "host"
        edits = {"nothing": Edits(), **driver_edits(host)}
        bundle = folder / "bundle"
        bundle.mkdir()
        start = runc_start(runc, bundle) if runc else bare_start(folder / "container")
        took: dict[str, list[float]] = {kind: [] for kind in edits}
        for _ in range(rounds):
            for kind, found in edits.items():
                took[kind].append(start(found.mounts))
        base = fast(took["nothing"])
        click.echo(f"{'device':12} {'mounts':>6} {'start, ms':>9} {'more, ms':>8}")
        for kind, found in edits.items():
            start_ms = 1e3 * fast(took[kind])
            click.echo(
                f"{kind:12} {len(found.mounts):6} {start_ms:9.1f} {start_ms - 1e3 * base:8.1f}"
            )


if __name__ == "__main__":
    main()
