"""The simulated host's ``nvidia-cuda-mps-control``: a daemon, and the commands that are sent to it.

Options, commands and what they are for: NVIDIA's "Multi-Process Service" guide (Tools and interface
reference) and ``man nvidia-cuda-mps-control``; the words of a daemon that is not there as that
program prints them. Limits that are set are for servers that are spawned afterwards, and one is by
the first client: the simulated daemon keeps them, and spawns nothing. Its sockets are a FIFO here.
Where a file ``nvidia-cuda-mps-control.single-user`` lies beside it, it is of a driver without -M.
"""

from typing import Final

SCRIPT: Final = """#!/bin/sh
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
