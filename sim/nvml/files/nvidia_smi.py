"""The simulated host's ``nvidia-smi``: a program of its own, as the driver's is.

It knows ``compute-policy`` alone, with the options that the real program's help prints
(NVIDIA/k8s-device-plugin#354) and the call of NVIDIA's DRA driver (``nvlib.go:setTimeSlice``). The
length of a GPU's turns is kept in a file by the GPU's UUID, which a boot takes away; that a real
driver forgets it then is inferred, as nothing of it is on disk.
"""

from pathlib import Path
from typing import Final

STATE: Final = "run/simulated-driver/timeslices"
"""Below the host's root, a file for each GPU that was set: the number that was asked for."""

SCRIPT: Final = """#!/bin/sh
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
    return SCRIPT.replace("VERSION", version).replace("STATE", STATE)


def time_slice(host_root: Path, gpu: str) -> int:
    """The length of turns on the GPU of this UUID: 0 Default, 1 Short, 2 Medium, 3 Long."""
    try:
        return int((host_root / STATE / gpu).read_text())
    except FileNotFoundError:
        return 0
