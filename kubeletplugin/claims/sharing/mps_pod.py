"""Pod of one claim's MPS daemon, in the driver's own namespace.

Its only texts from a tenant are the claim's name and namespace, in an annotation; the others are
the claim's UID, values from NVML, and numbers. The Node owns the pod, like mirror pods of static
pods, so that the pod is deleted with the Node. The claim cannot own it, as an owner must be in the
same namespace: the node program deletes the pod when the claim is released.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dra.common.resources import Obj
from dra.gpu.inventory import ClaimRef
from kubeletplugin.errors import HostError
from kubeletplugin.host.driverfiles import DriverFiles
from kubeletplugin.host.roots import Roots
from kubeletplugin.host.trees import make_bounded, remove_tree
from kubeletplugin.options import Options

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
"""Script that starts ``nvidia-cuda-mps-control``, sets the limits, and ends it.

It needs only a POSIX shell, ``mkfifo``, ``mknod``, ``ln`` and ``mv``, so that a daemon costs a
megabyte of memory besides NVIDIA's processes. ``/mps`` is the claim's directory; the FIFO in it is
open while any process of the daemon lives. Device nodes are made in the container's own ``/dev``,
as an MPS server runs as its client's user and cannot make them. With ``-M`` one server serves
clients of several users (NVIDIA's DRA driver, option MultiUser of its template); with a driver
without ``-M``, clients of another user wait until those of the first have ended. Commands and
environment: NVIDIA's "Multi-Process Service" guide and ``man nvidia-cuda-mps-control``. The limits
name the daemon's only device by its index 0, as not every driver takes UUIDs there
(NVIDIA/k8s-device-plugin#537, #572).
"""


COMPONENT = "mps-daemon"
COMPONENT_LABEL = "app.kubernetes.io/component"
CONTROL = "nvidia-cuda-mps-control"
SERVER = "nvidia-cuda-mps-server"
PIPES = "/tmp/nvidia-mps"  # noqa: S108 - where CUDA looks for them, in a container
_LOGS = "/var/log/nvidia-mps"
_HOST = "/host"
_GRACE_SECONDS = 10
_MEBIBYTES = 4096
_INODES = 8192
_ANYBODY = 0o1777
_LIBRARIES = ("libcuda", "libnvidia-ml", "libnvidia-ptxjitcompiler")


@dataclass(frozen=True, slots=True)
class Places:
    """The directory of one claim's daemon, which has the same path on the host.

    It is a file system of its own, of bounded size, as clients can fill it: they see ``pipe`` and
    ``shm``, and make the daemon write to ``log``. Methods raise HostError if a file cannot be used.
    """

    folder: Path

    @property
    def pipe(self) -> Path:
        """Directory of the daemon's sockets."""
        return self.folder / "pipe"

    @property
    def log(self) -> Path:
        """Directory of the daemon's logs."""
        return self.folder / "log"

    @property
    def shm(self) -> Path:
        """Directory for ``/dev/shm`` of daemon and clients; it outlives the daemon's pod."""
        return self.folder / "shm"

    def make(self, roots: Roots) -> None:
        """Make the directories that do not exist."""
        make_bounded(roots, self.folder, mebibytes=_MEBIBYTES, inodes=_INODES)
        try:
            for folder in (self.pipe, self.log, self.shm):
                folder.mkdir(exist_ok=True)
            self.shm.chmod(_ANYBODY)
        except OSError as error:
            raise HostError(f"cannot make {self.folder}: {error.strerror or error}") from error

    def remove(self) -> None:
        """Remove the directory with its content, without following links made by a client."""
        try:
            remove_tree(self.folder)
        except FileNotFoundError:
            return
        except OSError as error:
            raise HostError(f"cannot remove {self.folder}: {error.strerror or error}") from error

    def is_alive(self) -> bool:
        """True if any process of the daemon lives: each has the FIFO open for reading."""
        try:
            fifo = os.open(self.folder / "alive", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return False  # ENXIO: nobody reads
        os.close(fifo)
        return True

    def settings(self) -> str:
        """The settings with which the daemon is ready, as text; empty while it is not ready."""
        return self._read("ready") if self.is_alive() else ""

    def _read(self, name: str) -> str:
        try:
            return (self.folder / name).read_text()
        except OSError:
            return ""


@dataclass(frozen=True, slots=True)
class Settings:
    """Device and limits of one daemon; a daemon with any other setting is replaced.

    ``device``: UUID of the GPU or MIG device. ``boot_id``: boot for which the daemon was made; MIG
    devices of another boot are gone. ``nodes``: device nodes as ``<path>:<major>:<minor>``.
    ``threads``: percentage of active threads; None is no limit. ``mebibytes``: device memory in
    MiB; None is no limit.
    """

    device: str
    boot_id: str
    nodes: tuple[str, ...]
    threads: int | None = None
    mebibytes: int | None = None

    def __str__(self) -> str:
        words = (self.device, self.threads, self.mebibytes, self.boot_id, *self.nodes)
        return " ".join(map(str, words))


def pod_name(claim_uid: str) -> str:
    """The name of the daemon's pod."""
    return f"mps-{claim_uid.lower()}"


def daemon_pod(  # noqa: PLR0913 - all that a pod says
    claim: ClaimRef,
    settings: Settings,
    *,
    options: Options,
    owner: Obj,
    places: Places,
    files: DriverFiles,
) -> Obj:
    """The daemon's pod.

    ``owner``: owner reference to the Node. ``files``: driver files with both MPS programs.
    """
    environment = {
        "CONTROL": f"{_HOST}{files.programs[CONTROL]}",
        "CUDA_MPS_LOG_DIRECTORY": _LOGS,
        "CUDA_MPS_PIPE_DIRECTORY": PIPES,
        "CUDA_VISIBLE_DEVICES": settings.device,
        "LIBRARIES": " ".join(
            f"{each.soname}={_HOST}{each.path}"
            for each in files.libraries
            if each.stem in _LIBRARIES
        ),
        "MEBIBYTES": "" if settings.mebibytes is None else str(settings.mebibytes),
        "NODES": " ".join(settings.nodes),
        "SETTINGS": str(settings),
        "THREADS": "" if settings.threads is None else str(settings.threads),
    }
    env: list[Obj] = [{"name": name, "value": value} for name, value in environment.items()]
    mounts = {
        "host": _HOST,
        "claim": "/mps",
        "shm": "/dev/shm",  # noqa: S108 - in the container
        "pipe": PIPES,
        "log": _LOGS,
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": pod_name(claim.uid),
            "namespace": options.mps_namespace,
            "labels": {COMPONENT_LABEL: COMPONENT, f"{options.driver_name}/claim-uid": claim.uid},
            "annotations": {f"{options.driver_name}/claim": f"{claim.namespace}/{claim.name}"},
            "ownerReferences": [{**owner, "controller": True}],
        },
        "spec": {
            "nodeName": options.node_name,
            "hostPID": True,
            "restartPolicy": "Always",
            "priorityClassName": "system-node-critical",
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": _GRACE_SECONDS,
            "tolerations": [{"operator": "Exists"}],
            "imagePullSecrets": [{"name": name} for name in options.mps_pull_secrets],
            "containers": [
                {
                    "name": COMPONENT,
                    "image": options.mps_image,
                    "imagePullPolicy": "IfNotPresent",
                    "command": ["sh", "-c", SCRIPT],
                    "env": env,
                    "securityContext": {"privileged": True},
                    "resources": {"requests": {"cpu": "10m", "memory": "64Mi"}},
                    "terminationMessagePolicy": "FallbackToLogsOnError",
                    "readinessProbe": {"exec": {"command": ["cat", "/mps/ready"]}},
                    "volumeMounts": [
                        {
                            "name": name,
                            "mountPath": path,
                            **({"readOnly": True} if name == "host" else {}),
                        }
                        for name, path in mounts.items()
                    ],
                }
            ],
            "volumes": [
                {"name": "host", "hostPath": {"path": "/"}},
                {"name": "claim", "hostPath": {"path": str(places.folder)}},
                {"name": "shm", "hostPath": {"path": str(places.shm)}},
                {"name": "pipe", "hostPath": {"path": str(places.pipe)}},
                {"name": "log", "hostPath": {"path": str(places.log)}},
            ],
        },
    }
