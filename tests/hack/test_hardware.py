"""The run on hardware goes to its end on a simulated machine, and tells what is right from wrong.

NVML is the benchmark's compiled library, the driver's files are the simulated machine's, and
libcuda is a stand-in that needs the library which compiles kernels, as the real one does.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest
from packaging.utils import canonicalize_name

from hack.bench.node import library
from hack.hardware.__main__ import Asked, _check
from hack.release.packages import IMAGES
from kubeletplugin.host.libraries import this_architecture
from sim.nvml.machine import GpuSpec, Machine
from sim.processes import ClusterError
from tests.deploy.images.imagefiles import pinned
from tests.kubeletplugin.host.rootfs import compiled

CUDA = r"""
#include <dlfcn.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
int cuInit(unsigned f) { return 0; }
int cuDeviceGetCount(int *n) { *n = 1; return 0; }
int cuDeviceGet(int *d, int i) { *d = 0; return 0; }
int cuDeviceGetName(char *s, int n, int d) { strncpy(s, "stand-in", n); return 0; }
int cuDeviceGetAttribute(int *v, int a, int d) {
    *v = getenv("CUDA_MPS_PIPE_DIRECTORY") ? 7 : 14;
    return 0;
}
int cuCtxCreate_v2(void **c, unsigned f, int d) { *c = 0; return 0; }
int cuGetErrorName(int e, const char **s) {
    *s = e == 221 ? "JIT_COMPILER_NOT_FOUND" : "OUT_OF_MEMORY";
    return 0;
}
static size_t taken, all = 1024ul << 20;
int cuMemGetInfo_v2(size_t *f, size_t *t) { *f = all - taken; *t = all; return 0; }
int cuMemAlloc_v2(void **p, size_t n) {
    if (taken + n > all) return 2;
    taken += n;
    *p = n > 8 << 20 ? 0 : malloc(n);
    return 0;
}
int cuMemcpyHtoD_v2(void *to, const void *from, size_t n) { memcpy(to, from, n); return 0; }
int cuMemcpyDtoH_v2(void *to, const void *from, size_t n) { memcpy(to, from, n); return 0; }
int cuModuleLoadData(void **m, const void *d) {
    return dlopen("libnvidia-ptxjitcompiler.so.1", RTLD_NOW) ? 0 : 221;
}
int cuModuleGetFunction(void **f, void *m, const char *n) { *f = 0; return 0; }
int cuLaunchKernel(void *f, int gx, int gy, int gz, int bx, int by, int bz,
                   unsigned s, void *q, void **a, void **e) {
    unsigned *numbers = *(unsigned **)a[0], count = *(unsigned *)a[1];
    for (unsigned i = 0; i < count; i++) numbers[i] = numbers[i] * 3 + i;
    return 0;
}
int cuCtxSynchronize(void) { return 0; }
"""


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    if os.geteuid() or shutil.which("cc") is None:
        pytest.skip("needs root and a C compiler")
    folder = tmp_path_factory.mktemp("machine")
    made = Machine.create(folder / "hw", [GpuSpec("A30")])
    (made.directory / "nvml.txt").write_text(library.description(made))
    library.build(folder)
    files = made.host_root / "usr/lib" / this_architecture().multiarch
    for name, source, flags in (("libcuda", CUDA, ["-ldl"]), ("libnvidia-ptxjitcompiler", "", [])):
        target = files / f"{name}.so.{made.state().driver_version}"
        target.unlink()
        compiled(source, target, "-shared", "-fPIC", "-w", f"-Wl,-soname,{name}.so.1", *flags)
    return made


def run(machine: Machine, tmp_path: Path, *arguments: str, mig: bool) -> dict[str, Any]:
    """The parts of the report."""
    output = tmp_path / "hardware.json"
    command = [sys.executable, "-m", "hack.hardware", "--output", str(output), "--seconds", "0"]
    command += ["--host-root", str(machine.host_root), *arguments]
    named = {
        "LD_LIBRARY_PATH": str(machine.directory.parent),
        "NVML_MACHINE": str(machine.directory / "nvml.txt"),
        "NVML_MIG": str(int(mig)),
    }
    done = subprocess.run(
        command, env=os.environ | named, check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    parts: dict[str, Any] = json.loads(output.read_text())["parts"]
    assert {n: p["failed"] for n, p in parts.items() if "failed" in p} == {}, done.stdout
    return {name: part.get("found") for name, part in parts.items()}


def assert_computes(found: dict[str, Any]) -> None:
    assert "simulated nvidia-smi" in found["nvidia-smi"]["output"]
    assert found["compute"]["right"] is True


def test_the_packages_of_the_programs_suffice() -> None:
    """``make hardware`` installs no others; grpc has the generator of its stubs if it is there."""
    loaded = "import sys; sys.modules['grpc_tools'] = None; import hack.hardware.__main__\n"
    loaded += "print(*(n for n, m in sys.modules.items() if m and '.' not in n))"
    names = subprocess.run(
        [sys.executable, "-c", loaded], check=True, capture_output=True, text=True
    ).stdout.split()
    ours = {"dra-driver-nvidia-mig", "setuptools"}
    given = ours.union(*map(pinned, IMAGES))
    others = packages_distributions()
    packages = {canonicalize_name(p) for n in names for p in others.get(n, ())}
    assert packages <= given


def test_a_check_that_ends_halfway_is_told_with_its_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ended(command: list[str], **_options: Any) -> subprocess.CompletedProcess[str]:
        Path(command[command.index("--json") + 1]).touch()
        return subprocess.CompletedProcess(command, 1, "", "Error: no such call")

    monkeypatch.setattr(subprocess, "run", ended)
    asked = Asked(host_root=Path("/"), driver_root="/", slices=True, seconds=0.0)
    with pytest.raises(ClusterError, match="no such call"):
        _check(tmp_path, asked)


def test_a_whole_gpu_computes_and_is_shared(machine: Machine, tmp_path: Path) -> None:
    parts = run(machine, tmp_path, mig=False)
    assert_computes(parts["whole GPU"])
    lacking = parts["whole GPU"]["compute without libnvidia-ptxjitcompiler"]
    assert lacking["failed"] == "cuModuleLoadData: 221 JIT_COMPILER_NOT_FOUND"
    assert parts["MPS"]["compute beside another"]["multiprocessors"] == 7
    assert parts["MPS"]["memory beside another"]["taken_mib"] == 1024
    assert parts["MPS"]["the other"]["name"] == "stand-in"
    [gpu] = parts["answers of NVML"].values()
    assert (gpu["mig"], gpu["fixture"], gpu["other"]) == ([False, False], "A30", [])


def test_a_slice_of_each_profile_computes_and_is_gone(machine: Machine, tmp_path: Path) -> None:
    parts = run(machine, tmp_path, "--slices", mig=True)
    profiles = {p.name for p in machine.product(0).gi_profiles}
    slices = {name.partition(" ")[2]: p for name, p in parts.items() if name.startswith("slice ")}
    assert slices.keys() == profiles
    for found in slices.values():
        assert_computes(found)
    assert {t["profile"] for t in parts["check"]["trials"]} == profiles
    assert {t.get("refused", "") for t in parts["check"]["trials"]} == {""}
