"""Pod of one claim's MPS daemon, in the driver's own namespace.

Nothing in it is a text of a tenant but the claim's name and namespace, as annotations: the rest is
the claim's UID, what NVML says, and numbers. The Node owns it, as it does static pods' mirrors, so
that it goes with the Node; an owner in another namespace is none for Kubernetes, and so the node
program removes it with the claim.
"""

from __future__ import annotations

from dataclasses import dataclass

from dra.common.resources import Obj
from dra.gpu.inventory import ClaimRef
from kubeletplugin.claims.sharing.mps.daemonscript import SCRIPT
from kubeletplugin.claims.sharing.mps.places import Places
from kubeletplugin.host.driverfiles import DriverFiles

COMPONENT = "mps-daemon"
COMPONENT_LABEL = "app.kubernetes.io/component"
CONTROL = "nvidia-cuda-mps-control"
SERVER = "nvidia-cuda-mps-server"
PIPES = "/tmp/nvidia-mps"  # noqa: S108 - where CUDA looks for them, in a container
_LOGS = "/var/log/nvidia-mps"
_HOST = "/host"
_GRACE_SECONDS = 10
_LIBRARIES = ("libcuda", "libnvidia-ml", "libnvidia-ptxjitcompiler")


@dataclass(frozen=True, slots=True)
class Settings:
    """Device and limits of one daemon. ``threads`` is a percentage; None is no limit.

    A daemon of another boot is another: it was told of a device that is not there any more. So is
    one with other ``nodes``: device nodes as ``<path>:<major>:<minor>``.
    """

    device: str
    boot_id: str
    nodes: tuple[str, ...]
    threads: int | None = None
    mebibytes: int | None = None

    def __str__(self) -> str:
        words = (self.device, self.threads, self.mebibytes, self.boot_id, *self.nodes)
        return " ".join(map(str, words))


@dataclass(frozen=True, slots=True)
class Site:
    """Site of the daemons' pods: namespace, image and its pull secrets, and the Node as owner."""

    driver: str
    namespace: str
    image: str
    pull_secrets: tuple[str, ...]
    node: str
    owner: Obj


def pod_name(claim_uid: str) -> str:
    """The name of the daemon's pod."""
    return f"mps-{claim_uid.lower()}"


def daemon_pod(
    claim: ClaimRef, settings: Settings, *, site: Site, places: Places, files: DriverFiles
) -> Obj:
    """The pod. ``files`` has both of NVIDIA's programs."""
    environment = {
        "CONTROL": _on_host(files, files.programs[CONTROL]),
        "CUDA_MPS_LOG_DIRECTORY": _LOGS,
        "CUDA_MPS_PIPE_DIRECTORY": PIPES,
        "CUDA_VISIBLE_DEVICES": settings.device,
        "LIBRARIES": " ".join(
            f"{each.soname}={_on_host(files, each.path)}"
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
            "namespace": site.namespace,
            "labels": {COMPONENT_LABEL: COMPONENT, f"{site.driver}/claim-uid": claim.uid},
            "annotations": {f"{site.driver}/claim": f"{claim.namespace}/{claim.name}"},
            "ownerReferences": [{**site.owner, "controller": True}],
        },
        "spec": {
            "nodeName": site.node,
            "hostPID": True,
            "restartPolicy": "Always",
            "priorityClassName": "system-node-critical",
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": _GRACE_SECONDS,
            "tolerations": [{"operator": "Exists"}],
            "imagePullSecrets": [{"name": name} for name in site.pull_secrets],
            "containers": [
                {
                    "name": COMPONENT,
                    "image": site.image,
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


def _on_host(files: DriverFiles, path: str) -> str:
    """Path in the daemon's container of a file below the driver's root."""
    return f"{_HOST}{files.driver_root / path.lstrip('/')}"
