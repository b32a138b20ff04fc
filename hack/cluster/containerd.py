"""Container runtime of a node, its only image, and what the chart's pods see of this checkout."""

from __future__ import annotations

import contextlib
import copy
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from dra.common.resources import Obj
from hack.cluster.binaries import Binaries
from hack.cluster.chart import REPOSITORY, version
from hack.cluster.machine import MountNamespace
from sim.processes import Process, wait_for

IMAGE = "localhost/busybox:test"
"""Its reference; pods must say imagePullPolicy Never or IfNotPresent."""

APPLETS = (
    *("sh", "sleep", "cat", "ls", "stat", "env", "echo", "touch", "id"),
    *("grep", "ln", "mkdir", "rm", "test", "[", "mkfifo", "mknod", "mv"),
)

_LAYER = "application/vnd.oci.image.layer.v1.tar"
_IMAGE_CONFIG = "application/vnd.oci.image.config.v1+json"
_MANIFEST = "application/vnd.oci.image.manifest.v1+json"


def write_image(target: Path, *, busybox: Path, references: Sequence[str] = ()) -> None:
    """Writes an OCI image archive whose entry point sleeps for ever and whose PATH is /bin.

    Args:
        target: the archive, for `ctr images import`.
        busybox: a statically linked busybox.
        references: further names of the image, in full.
    """
    layer = _layer(busybox.read_bytes())
    config = _json(
        {
            "architecture": "amd64",
            "os": "linux",
            "config": {"Entrypoint": ["/bin/sleep", "1000000000"], "Env": ["PATH=/bin"]},
            "rootfs": {"type": "layers", "diff_ids": [_digest(layer)]},
        }
    )
    manifest = _json(
        {
            "schemaVersion": 2,
            "mediaType": _MANIFEST,
            "config": _descriptor(_IMAGE_CONFIG, config),
            "layers": [_descriptor(_LAYER, layer)],
        }
    )
    named = [
        _descriptor(_MANIFEST, manifest) | {"annotations": {"io.containerd.image.name": each}}
        for each in (IMAGE, *references)
    ]
    with tarfile.open(target, "w") as archive:
        _add(archive, "oci-layout", _json({"imageLayoutVersion": "1.0.0"}))
        _add(archive, "index.json", _json({"schemaVersion": 2, "manifests": named}))
        for blob in (layer, config, manifest):
            _add(archive, f"blobs/sha256/{_digest(blob).removeprefix('sha256:')}", blob)


def _layer(busybox: bytes) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for directory in ("bin", "dev", "etc", "proc", "sys", "tmp"):
            entry = tarfile.TarInfo(directory)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(entry)
        _add(archive, "bin/busybox", busybox, mode=0o755)
        for applet in APPLETS:
            entry = tarfile.TarInfo(f"bin/{applet}")
            entry.type, entry.linkname = tarfile.SYMTYPE, "busybox"
            archive.addfile(entry)
    return buffer.getvalue()


def _add(archive: tarfile.TarFile, name: str, content: bytes, *, mode: int = 0o644) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), mode
    archive.addfile(entry, io.BytesIO(content))


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def _descriptor(media_type: str, content: bytes) -> dict[str, Any]:
    return {"mediaType": media_type, "digest": _digest(content), "size": len(content)}


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()


HANDLER = "checkout"
"""The container runtime's handler, and the RuntimeClass, of pods that see this checkout."""

RUNTIME_CLASS: Obj = {
    "apiVersion": "node.k8s.io/v1",
    "kind": "RuntimeClass",
    "metadata": {"name": HANDLER},
    "handler": HANDLER,
}

_SYSTEM = ("/usr", "/lib", "/lib64")
"""Folders of the machine with what Python links to."""


USER_IMAGE = "ubuntu:24.04"
"""Image that the pods of the handbook ask for: busybox under its name, as nothing can be pulled."""


def references() -> list[str]:
    """The images that the pods of chart and handbook ask for, in full."""
    names = ("controller", "kubelet-plugin", "simulator")
    ours = [f"docker.io/dra-driver-nvidia-mig/{each}:{version()}" for each in names]
    return [*ours, f"docker.io/library/{USER_IMAGE}"]


def adapted(objects: Iterable[Obj], *, server: str) -> list[Obj]:
    """The chart's objects, their workloads changed so that they run here.

    Args:
        objects: what the chart renders.
        server: URL of the API server.
    """
    return [_adapted(each, server) if _is_workload(each) else each for each in objects]


def with_checkout(spec: dict[str, Any]) -> dict[str, Any]:
    """A runtime specification (OCI) that shows this checkout and Python, at their own paths."""
    # The outermost first: one of them may lie in another.
    paths = sorted({*_SYSTEM, sys.base_prefix, sys.prefix, str(REPOSITORY)})
    mounts = [
        {
            "destination": path,
            "type": "bind",
            "source": str(Path(path).resolve()),
            "options": ["rbind", "ro"],
        }
        for path in paths
        if Path(path).exists()
    ]
    return {**spec, "mounts": [*spec["mounts"], *mounts]}


def _is_workload(obj: Obj) -> bool:
    return obj["kind"] in {"Deployment", "DaemonSet"}


def _adapted(workload: Obj, server: str) -> Obj:
    changed = copy.deepcopy(workload)
    address = urlsplit(server)
    environment = {
        "PATH": f"{sys.prefix}/bin:/bin",
        "KUBERNETES_SERVICE_HOST": str(address.hostname),
        "KUBERNETES_SERVICE_PORT": str(address.port),
    }
    spec = changed["spec"]["template"]["spec"]
    spec |= {"hostNetwork": True, "dnsPolicy": "Default", "runtimeClassName": HANDLER}
    for container in [*spec.get("initContainers", []), *spec["containers"]]:
        container["workingDir"] = str(REPOSITORY)
        for field in ("ports", "startupProbe", "livenessProbe", "readinessProbe"):
            container.pop(field, None)
        container["args"] = [
            "--metrics-address=127.0.0.1:0" if each.startswith("--metrics-address=") else each
            for each in container.get("args", [])
        ]
        container.setdefault("env", []).extend(
            {"name": name, "value": value} for name, value in environment.items()
        )
    return changed


NAMESPACE = "k8s.io"

_NETWORK = {
    "cniVersion": "1.0.0",
    "name": "none",
    "plugins": [{"type": "none"}],
}
_PLUGIN = """\
#!/bin/sh
# A CNI plugin: the pod keeps its loopback interface, and its address leads nowhere.
case $CNI_COMMAND in
ADD) printf '{"cniVersion":"1.0.0","interfaces":[{"name":"%s","sandbox":"%s"}],' \
        "$CNI_IFNAME" "$CNI_NETNS"
    printf '"ips":[{"address":"192.0.2.1/32","interface":0}]}' ;;
VERSION) printf '{"cniVersion":"1.0.0","supportedVersions":["1.0.0"]}' ;;
esac
"""
"""For pods without the host's network, such as a user's first one. RFC 5737's TEST-NET-1."""

_CONFIG = """\
version = 3
root = "{root}/root"
state = "{root}/state"
disabled_plugins = ["io.containerd.nri.v1.nri"]
[grpc]
address = "{socket}"
[plugins."io.containerd.cri.v1.images"]
snapshotter = "native"
[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = "{image}"
[plugins."io.containerd.cri.v1.runtime"]
cdi_spec_dirs = ["{cdi}"]
restrict_oom_score_adj = true
[plugins."io.containerd.cri.v1.runtime".cni]
conf_dir = "{root}/cni"
bin_dirs = ["{root}/cni-bin"]
use_internal_loopback = true
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
BinaryName = "{runc}"
Root = "{root}/runc"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.{handler}]
runtime_type = "io.containerd.runc.v2"
base_runtime_spec = "{root}/{handler}.json"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.{handler}.options]
BinaryName = "{runc}"
Root = "{root}/runc"
"""


class Containerd:
    """A container runtime of our own.

    Args:
        binaries: must hold `binaries.NODE`.
        root: a directory to make; its path is part of socket paths, so keep it short.
        cdi: directory of the CDI specs; made if missing.
        logs: directory for the log.
        namespace: where it runs, with everything it mounts.
    """

    def __init__(
        self, binaries: Binaries, root: Path, *, cdi: Path, logs: Path, namespace: MountNamespace
    ) -> None:
        self.socket = root / "s"
        self._binaries = binaries
        self._root = root
        self._cdi = cdi
        config = root / "config.toml"
        search = f"{binaries.directory}:{os.environ.get('PATH', os.defpath)}"  # finds the shim
        self.process = Process(
            "containerd",
            [binaries.path("containerd"), "--config", str(config), "--log-level", "info"],
            logs=logs,
            environment={**os.environ, "PATH": search},
            within=namespace.within,
        )

    def start(self) -> None:
        """Starts it and imports the image."""
        for directory in (self._root / "cni", self._root / "cni-bin", self._cdi):
            directory.mkdir(parents=True, exist_ok=True)
        (self._root / "cni" / "none.conflist").write_text(json.dumps(_NETWORK))
        plugin = self._root / "cni-bin" / "none"
        plugin.write_text(_PLUGIN)
        plugin.chmod(0o755)
        (self._root / "config.toml").write_text(
            _CONFIG.format(
                root=self._root,
                socket=self.socket,
                cdi=self._cdi,
                image=IMAGE,
                runc=self._binaries.path("runc"),
                handler=HANDLER,
            )
        )
        spec = with_checkout(json.loads(self._ctr("oci", "spec")))
        (self._root / f"{HANDLER}.json").write_text(json.dumps(spec))
        self.process.start()
        wait_for("containerd", self._serving, timeout=60, context=self.process.tail)
        archive = self._root / "image.tar"
        busybox = Path(self._binaries.path("busybox"))
        write_image(archive, busybox=busybox, references=references())
        self._ctr("images", "import", "--no-unpack", str(archive))

    def stop(self) -> None:
        """Removes every container, ends containerd and its shims."""
        if self.process.running and self._serving():
            for container in self._ctr("containers", "ls", "-q").split():
                for command in (
                    ("tasks", "delete", "--force", container),
                    ("containers", "delete", container),
                ):
                    with contextlib.suppress(subprocess.CalledProcessError):
                        self._ctr(*command)
        self.process.stop()
        self._kill_shims()

    def lose_power(self) -> None:
        """Ends everything at once, and forgets what a machine keeps in /run."""
        self.process.kill()
        self._kill_shims()
        for volatile in ("state", "runc"):
            shutil.rmtree(self._root / volatile, ignore_errors=True)

    def kill_task(self, container: str) -> None:
        """Kills the processes of a running container, by its id."""
        self._ctr("tasks", "kill", "--signal", "SIGKILL", container)

    def _kill_shims(self) -> None:
        for pid in self.shims():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, 9)

    def _ctr(self, *arguments: str) -> str:
        command = [self._binaries.path("ctr"), "--address", str(self.socket), "-n", NAMESPACE]
        done = subprocess.run(
            [*command, *arguments], check=True, capture_output=True, text=True, timeout=60
        )
        return done.stdout

    def _serving(self) -> bool:
        self.process.assert_running()
        try:
            self._ctr("plugins", "ls")
        except subprocess.CalledProcessError:
            return False
        return True

    def shims(self) -> list[int]:
        """The process ids of our shims, which name our socket on their command line."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    arguments = (entry / "cmdline").read_bytes().decode(errors="replace")
                    if "containerd-shim" in arguments and str(self.socket) in arguments:
                        found.append(int(entry.name))
        return found
