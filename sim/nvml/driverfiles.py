"""Files of a driver package, as a simulated host has them: libraries, nvidia-smi, MPS."""

from __future__ import annotations

import platform
import struct
from pathlib import Path
from typing import Final

_MACHINES = {"x86_64": 62, "aarch64": 183}
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_DYNAMIC = struct.Struct("<qQ")
_SHARED, _LOAD, _DYNAMIC_SEGMENT = 3, 1, 2
_STRING_TABLE, _STRING_SIZE, _SONAME = 5, 10, 14


def empty_library(soname: str) -> bytes:
    """A 64-bit ELF library for this machine's processor, without symbols."""
    strings = b"\0" + soname.encode() + b"\0"
    table = _HEADER.size + 2 * _SEGMENT.size
    entries = 4
    names = table + entries * _DYNAMIC.size
    size = names + len(strings)
    dynamic = b"".join(
        _DYNAMIC.pack(tag, value)
        for tag, value in (
            (_SONAME, 1),
            (_STRING_TABLE, names),
            (_STRING_SIZE, len(strings)),
            (0, 0),
        )
    )
    header = _HEADER.pack(
        b"\x7fELF\x02\x01\x01",
        _SHARED,
        _MACHINES.get(platform.machine(), _MACHINES["x86_64"]),
        1,
        0,
        _HEADER.size,
        0,
        0,
        _HEADER.size,
        _SEGMENT.size,
        2,
        0,
        0,
        0,
    )
    whole = _SEGMENT.pack(_LOAD, 4, 0, 0, 0, size, size, 4096)
    part = _SEGMENT.pack(_DYNAMIC_SEGMENT, 4, table, table, table, len(dynamic), len(dynamic), 8)
    return header + whole + part + dynamic + strings


_LIBRARIES = Path("usr/lib/x86_64-linux-gnu")
# Name of the file to what follows in the SONAME; empty where that is the whole version.
_VERSIONED = {
    "libcuda.so": "1",
    "libcudadebugger.so": "1",
    "libnvcuvid.so": "1",
    "libnvidia-allocator.so": "1",
    "libnvidia-cfg.so": "1",
    "libnvidia-encode.so": "1",
    "libnvidia-gpucomp.so": "",
    "libnvidia-ml.so": "1",
    "libnvidia-nvvm.so": "4",
    "libnvidia-opencl.so": "1",
    "libnvidia-opticalflow.so": "1",
    "libnvidia-pkcs11.so": "",
    "libnvidia-pkcs11-openssl3.so": "",
    "libnvidia-ptxjitcompiler.so": "1",
    "libEGL_nvidia.so": "0",
    "libGLESv1_CM_nvidia.so": "1",
    "libGLESv2_nvidia.so": "2",
    "libGLX_nvidia.so": "0",
    "libnvidia-eglcore.so": "",
    "libnvidia-fbc.so": "1",
    "libnvidia-glcore.so": "",
    "libnvidia-glsi.so": "",
    "libnvidia-glvkspirv.so": "",
    "libnvidia-ngx.so": "1",
    "libnvidia-rtcore.so": "",
    "libnvidia-tls.so": "",
    "libnvoptix.so": "1",
}
_UNVERSIONED = ("libnvidia-nvvm70.so.4",)
_PROGRAMS = (
    "nvidia-smi",
    "nvidia-debugdump",
    "nvidia-persistenced",
    "nvidia-cuda-mps-control",
    "nvidia-cuda-mps-server",
)
_CONFIGURATION = {
    "etc/OpenCL/vendors/nvidia.icd": "libnvidia-opencl.so.1\n",
    "usr/share/glvnd/egl_vendor.d/10_nvidia.json": "{}\n",
    "usr/share/vulkan/icd.d/nvidia_icd.json": "{}\n",
}


def install(root: Path, version: str, *, libraries: bool = True) -> None:
    """Puts the files of a version where a Debian-like host has them."""
    folder = root / _LIBRARIES
    folder.mkdir(parents=True, exist_ok=True)
    if libraries:
        for name, major in _VERSIONED.items():
            file = f"{name}.{version}"
            _library(folder / file, f"{name}.{major}" if major else file)
        for name in _UNVERSIONED:
            _library(folder / name, name)
    for name in _PROGRAMS:
        path = root / "usr/bin" / name
        _write(path, _program(name, version))
        path.chmod(0o755)
    for name, content in _CONFIGURATION.items():
        _write(root / name, content)


def remove_libraries(root: Path) -> None:
    """Takes the libraries away, of whatever version."""
    for name in (*_VERSIONED, *(u.rpartition(".")[0] for u in _UNVERSIONED)):
        for path in (root / "usr").rglob(f"{name}.*"):
            path.unlink()


def library_file(root: Path, version: str) -> Path | None:
    """The file of NVML's library of a version, if it is installed."""
    return next(iter(sorted((root / "usr").rglob(f"libnvidia-ml.so.{version}"))), None)


def replace(root: Path, new: str) -> None:
    """Exchanges the installed files, as a package of another version does."""
    remove_libraries(root)
    install(root, new)


def _program(name: str, version: str) -> str:
    if name == "nvidia-smi":
        return script(version)
    if name == "nvidia-cuda-mps-control":
        return MPS_CONTROL
    return f"#!/bin/sh\necho 'simulated {name} {version}'\n"


def _library(path: Path, soname: str) -> None:
    """Leaves the file alone where it is: a process may have it mapped."""
    if not path.exists():
        path.write_bytes(empty_library(soname))


def _write(path: Path, content: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)


MPS_CONTROL: Final = """#!/bin/sh
pipe=${CUDA_MPS_PIPE_DIRECTORY:-/tmp/nvidia-mps}
state=$pipe/.simulated
if [ "$1" = -f ]; then
  if [ -n "$2" ] && { [ "$2" != -M ] || [ -e "$0.single-user" ]; }; then
    echo "unknown option $2"
    exit 1
  fi
  mkdir -p "$pipe" "$state"
  rm -f "$pipe/control" "$state"/*
  mkfifo "$pipe/control"
  echo $$ > "$pipe/nvidia-cuda-mps-control.pid"
  echo "${CUDA_VISIBLE_DEVICES:-}" > "$state/devices"
  echo "${2:--f}" > "$state/mode"
  trap 'rm -f "$pipe/control" "$pipe/nvidia-cuda-mps-control.pid"; exit 0' TERM INT
  exec 3<>"$pipe/control"
  while read -r reply command first second <&3; do
    answer=
    case "$command" in
      get_server_list|get_device_client_list) ;;
      get_default_active_thread_percentage)
        answer=$(cat "$state/threads" 2>/dev/null || echo 100.0) ;;
      set_default_active_thread_percentage) echo "$first" > "$state/threads"; answer=$first ;;
      get_default_device_pinned_mem_limit) answer=$(cat "$state/memory-$first" 2>/dev/null) ;;
      set_default_device_pinned_mem_limit)
        case "$first" in
          [0-9]) echo "$second" > "$state/memory-$first" ;;
          *) answer='Invalid device ordinal' ;;
        esac ;;
      quit)
        echo > "$pipe/$reply"
        rm -f "$pipe/control" "$pipe/nvidia-cuda-mps-control.pid"
        exit 0 ;;
      *) answer="Unknown command: $command" ;;
    esac
    echo "$answer" > "$pipe/$reply"
  done
  exit 1
fi
pid=$(cat "$pipe/nvidia-cuda-mps-control.pid" 2>/dev/null)
if [ -z "$pid" ] || [ ! -p "$pipe/control" ] || ! kill -0 "$pid" 2>/dev/null; then
  echo 'Cannot find MPS control daemon process'
  exit 1
fi
reply=.reply-$$
mkfifo "$pipe/$reply"
trap 'rm -f "$pipe/$reply"' EXIT
while read -r command; do
  echo "$reply $command" > "$pipe/control"
  cat "$pipe/$reply"
done
"""


STATE: Final = "run/simulated-driver/timeslices"
"""Below the host's root, a file for each GPU that was set: the number that was asked for."""

NVIDIA_SMI: Final = """#!/bin/sh
root=${0%/*}/../..
if [ "$1" != compute-policy ]; then
  echo 'simulated nvidia-smi VERSION'
  exit 0
fi
shift
while [ $# -gt 0 ]; do
  case "$1" in
    -i|--id) gpu=$2; shift 2 ;;
    --set-timeslice) number=$2; shift 2 ;;
    --set-timeslice=*) number=${1#*=}; shift ;;
    *) echo "Invalid combination of input arguments. Unknown: $1"; exit 2 ;;
  esac
done
case "$number" in
  0|1|2|3) ;;
  *) echo "Invalid timeslice '$number'"; exit 2 ;;
esac
if ! grep -qs "GPU UUID:.*$gpu" "$root"/proc/driver/nvidia/gpus/*/information; then
  echo 'No devices were found'
  exit 6
fi
mkdir -p "$root/STATE"
echo "$number" > "$root/STATE/$gpu"
echo "Successfully set timeslice to $number"
"""


def script(version: str) -> str:
    """The program of one version of the driver."""
    return NVIDIA_SMI.replace("VERSION", version).replace("STATE", STATE)


def time_slice(host_root: Path, gpu: str) -> int:
    """The length of turns on the GPU of this UUID: 0 Default, 1 Short, 2 Medium, 3 Long."""
    try:
        return int((host_root / STATE / gpu).read_text())
    except FileNotFoundError:
        return 0
