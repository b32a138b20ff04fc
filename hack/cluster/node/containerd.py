"""containerd below a directory of ours, with CDI specs read from one of ours too."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from hack.cluster.driver import pods
from hack.cluster.machine.processes import Process
from hack.cluster.node.image import IMAGE, write_image
from hack.cluster.waiting import wait_for

if TYPE_CHECKING:
    from hack.cluster.binaries import Binaries
    from hack.cluster.machine.mounts import MountNamespace

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
                handler=pods.HANDLER,
            )
        )
        spec = pods.with_checkout(json.loads(self._ctr("oci", "spec")))
        (self._root / f"{pods.HANDLER}.json").write_text(json.dumps(spec))
        self.process.start()
        wait_for("containerd", self._serving, timeout=60, context=self.process.tail)
        archive = self._root / "image.tar"
        busybox = Path(self._binaries.path("busybox"))
        write_image(archive, busybox=busybox, references=pods.references())
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
