"""Script of a daemon's container: starts ``nvidia-cuda-mps-control``, sets the limits, ends it.

It needs a POSIX shell and ``mkfifo``, ``mknod``, ``ln`` and ``mv`` alone, so that a daemon costs a
megabyte besides NVIDIA's processes. Device nodes are made in the container's own ``/dev``, whatever
the host has: a server runs as its client's user and cannot make them. ``-M`` has one server serve
clients of several users (NVIDIA's DRA driver, option MultiUser of its template); with a driver that
does not know it, a client of another user waits until those of the one before have ended. Commands
and environment: NVIDIA's "Multi-Process Service" guide and ``man nvidia-cuda-mps-control``. Limits
are told by index, the daemon's one device being 0: UUIDs are not taken everywhere
(NVIDIA/k8s-device-plugin#537, #572).
"""

from __future__ import annotations

from typing import Final

SCRIPT: Final = """\
set -eu
rm -f /mps/ready
[ -p /mps/alive ] || mkfifo /mps/alive
exec 9<>/mps/alive
for node in $NODES; do
  path=${node%%:*} numbers=${node#*:}
  mkdir -p "${path%/*}"
  rm -f "$path"
  mknod -m 666 "$path" c "${numbers%:*}" "${numbers#*:}"
done
mkdir -p /tmp/libraries
for library in $LIBRARIES; do
  ln -sf "${library#*=}" "/tmp/libraries/${library%%=*}"
done
export LD_LIBRARY_PATH=/tmp/libraries
export PATH="${CONTROL%/*}:$PATH"
end() {
  trap - TERM INT
  rm -f /mps/ready
  echo quit | "$CONTROL" > /dev/null 2>&1 || kill "$control" 2> /dev/null || true
  wait "$control" || true
  exit 0
}
trap end TERM INT
start() {
  "$CONTROL" -f $1 &
  control=$!
  until echo get_server_list | "$CONTROL" > /dev/null 2>&1; do
    kill -0 "$control" 2> /dev/null || return 1
    sleep 0.1 2> /dev/null || sleep 1
  done
}
start -M || start '' || { echo 'the control daemon did not start' >&2; exit 1; }
if [ -n "$THREADS" ]; then
  echo "set_default_active_thread_percentage $THREADS" | "$CONTROL"
fi
if [ -n "$MEBIBYTES" ]; then
  echo "set_default_device_pinned_mem_limit 0 ${MEBIBYTES}M" | "$CONTROL"
fi
printf '%s' "$SETTINGS" > /mps/ready.new
mv /mps/ready.new /mps/ready
wait "$control" || true
rm -f /mps/ready
echo 'the control daemon has ended' >&2
exit 1
"""
"""``/mps`` is the claim's directory: its FIFO is open while anything of the daemon lives."""
