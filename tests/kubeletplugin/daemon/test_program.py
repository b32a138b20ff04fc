"""The plugin as a process of its own: its memory, its imports, its library, its command line."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import yaml
from click.testing import CliRunner

from dra.common.resources import MIG_NODES
from kubeletplugin.__main__ import main
from sim.nvml.machine import GpuSpec
from tests.dra.kube.connect.tlsrelay import in_a_pod
from tests.helpers.scrape import get, logged_port
from tests.helpers.waiting import wait_for
from tests.kubeletplugin.helpers.rig import A100, Rig, exists

MOST_KIB = 70 * 1024
SLICE = "gpu-0-mig-1g5gb-19-4"
# Dumps what was imported when the process ends, and takes the service account from where the test
# has it; Python imports this module by itself.
SITECUSTOMIZE = """
import atexit, json, os, pathlib, sys
if "ACCOUNT" in os.environ:
    import dra.kube.kubeconfig
    dra.kube.kubeconfig.SERVICE_ACCOUNT = pathlib.Path(os.environ["ACCOUNT"])
atexit.register(lambda: open(os.environ["DUMP"], "w").write(json.dumps(sorted(sys.modules))))
"""
# pynvml asks for nvmlInitWithFlags; a real library has nvmlInit_v2 as well.
LIBRARY = """
#include <stdio.h>
#include <stdlib.h>
static int leave(void) {
    FILE *f = fopen(getenv("MARKER"), "w");
    if (f) fclose(f);
    return 77;
}
int nvmlInit_v2(void) { return leave(); }
int nvmlInitWithFlags(unsigned int flags) { return leave(); }
const char *nvmlErrorString(int code) { return "made by a test"; }
"""


class Process:
    """A running plugin; ``modules`` are what it had imported when it ended."""

    def __init__(self, command: list[str], folder: Path, **environment: str) -> None:
        (folder / "site").mkdir(exist_ok=True)
        (folder / "site/sitecustomize.py").write_text(SITECUSTOMIZE)
        self._dump = folder / "modules.json"
        self.log = folder / "log"
        variables = {"PYTHONPATH": str(folder / "site"), "DUMP": str(self._dump)}
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                command, stderr=log, env={**os.environ, **variables, **environment}
            )

    def rss_kib(self) -> int:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0])

    def end(self) -> list[str]:
        self.process.send_signal(signal.SIGTERM)
        wait_for("the end", lambda: self.process.poll() is not None, context=self.log.read_text)
        assert self.process.returncode == 0, self.log.read_text()
        modules: list[str] = json.loads(self._dump.read_text())
        return modules


@contextmanager
def running(command: list[str], folder: Path, **environment: str) -> Iterator[Process]:
    plugin = Process(command, folder, **environment)
    try:
        yield plugin
    finally:
        plugin.process.kill()
        plugin.process.wait()


def arguments(rig: Rig) -> list[str]:
    return [
        *("--node-name", rig.node, "--kubeconfig", str(rig.kubeconfig)),
        *("--kubelet-root", str(rig.roots.kubelet), "--cdi-root", str(rig.roots.cdi)),
    ]


def conditions(rig: Rig) -> dict[str, str]:
    """Their types and values, none before there is a MigNode."""
    found = rig.api.list(MIG_NODES, field_selector=f"metadata.name={rig.node}").items
    return {
        c["type"]: c["status"] for m in found for c in m.get("status", {}).get("conditions", [])
    }


def ready(rig: Rig) -> dict[str, str]:
    condition: dict[str, str] = rig.mignode()["status"]["conditions"][0]
    return condition


def forbidden(modules: list[str]) -> list[str]:
    return [
        m
        for m in modules
        if m.startswith(
            ("kubernetes.client.models.", "kubernetes.client.api.", "cel", "controller")
        )
    ]


@pytest.mark.parametrize("allocator", ["controller", "scheduler"])
def test_in_a_pod_it_stays_small_and_imports_neither_typed_models_nor_cel(
    make_rig: Callable[..., Rig], allocator: str
) -> None:
    rig = make_rig(*[GpuSpec(A100)] * 8)
    command = [sys.executable, "-m", "sim", "plugin", "--hardware", str(rig.machine.directory)]
    flags = [
        *("--node-name", rig.node, "--allocator", allocator, "--metrics-address", "127.0.0.1:0"),
        *("--kubelet-root", str(rig.roots.kubelet), "--cdi-root", str(rig.roots.cdi)),
    ]
    cluster = yaml.safe_load(rig.kubeconfig.read_text())["clusters"][0]["cluster"]
    server = urlsplit(cluster["server"])
    assert server.hostname is not None
    assert server.port is not None
    with (
        in_a_pod((server.hostname, server.port), rig.folder / "pod") as place,
        running(
            [*command, "--", *flags], rig.folder, ACCOUNT=str(place.account), **place.environment
        ) as plugin,
    ):
        wait_for("the socket", rig.registration_socket.exists)
        if allocator == "scheduler":
            wait_for("slices", lambda: "True" in conditions(rig).get("SlicesPublished", ""))
        refs = [rig.claim(f"gpu-{i}-mig-1g5gb-19-4") for i in range(8)]
        for ref in refs:
            rig.prepared(ref)
        wait_for("MigNode", lambda: len(rig.published_slices()) == 8)
        port = logged_port([plugin.log])
        for path in ("/metrics", "/healthz", "/readyz"):
            assert get(port, path)[0] == 200
        used = plugin.rss_kib()
        print(f"RSS with 8 A100, allocator {allocator}: {used / 1024:.1f} MiB")  # noqa: T201
        assert used < MOST_KIB, f"{used / 1024:.1f} MiB"
        modules = plugin.end()
    assert forbidden(modules) == []
    assert "kubernetes" not in modules
    assert "http.client" in modules, "the list is that of the plugin"
    assert [m for m in modules if m.startswith("kubeletplugin.check")] == []


def test_it_uses_the_library_that_the_loader_finds_and_nothing_of_the_simulator(
    make_rig: Callable[..., Rig],
) -> None:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler (cc) to make a library with")
    rig = make_rig(GpuSpec(A100))
    libraries = rig.folder / "lib"
    libraries.mkdir()
    (libraries / "nvml.c").write_text(LIBRARY)
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-o", "libnvidia-ml.so.1", "nvml.c"],
        cwd=libraries,
        check=True,
    )
    marker = rig.folder / "called"
    command = [sys.executable, "-m", "kubeletplugin", *arguments(rig)]
    environment = {"LD_LIBRARY_PATH": str(libraries), "MARKER": str(marker)}
    with running(command, rig.folder, **environment) as plugin:
        wait_for("the socket", rig.registration_socket.exists)
        assert "unlisted code (77)" in rig.refused(rig.claim(SLICE))
        assert marker.exists()
        wait_for("MigNode", lambda: exists(rig.api, MIG_NODES, rig.node))
        modules = plugin.end()
    assert [m for m in modules if m.split(".")[0] == "sim"] == []
    assert forbidden(modules) == []
    assert "77" in ready(rig)["message"]


def test_without_any_library_it_says_which_is_missing(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(GpuSpec(A100))
    command = [sys.executable, "-m", "kubeletplugin", *arguments(rig)]
    with running(command, rig.folder, LD_LIBRARY_PATH="") as plugin:
        wait_for("the socket", rig.registration_socket.exists)
        error = rig.refused(rig.claim(SLICE))
        if "LIBRARY_NOT_FOUND" not in error:
            pytest.skip("this machine has a real libnvidia-ml.so.1")
        assert "libnvidia-ml.so.1 was not found" in error
        plugin.end()


def run(*options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kubeletplugin", *options],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_socket_path_that_is_too_long_is_refused_before_anything_is_made(
    folder: Path, kubeconfig: Path
) -> None:
    kubelet = folder / ("k" * 90)
    done = run(
        *("--node-name", "n", "--kubeconfig", str(kubeconfig)), *("--kubelet-root", str(kubelet))
    )
    assert done.returncode == 1
    assert "characters, at most 107 fit" in done.stderr
    assert not kubelet.exists()


def test_a_kubeconfig_that_is_missing_is_named() -> None:
    done = run("--node-name", "n", "--kubeconfig", "/nowhere/kubeconfig")
    assert done.returncode == 1
    assert "/nowhere/kubeconfig" in done.stderr


def test_binding_conditions_need_slices_that_are_made_ahead() -> None:
    options = ("--node-name", "n", "--binding-conditions", "always", "--eager-seconds", "0")
    answer = CliRunner().invoke(main, options)
    assert answer.exit_code == 1
    assert "--eager-seconds more than 0" in answer.output


def test_the_node_name_is_asked_for() -> None:
    answer = CliRunner().invoke(main, [])
    assert answer.exit_code == 2
    assert "--node-name" in answer.output
