"""Containers in a user namespace (``hostUsers: false``), started by a real runc.

They get what containerd makes of the CDI devices of a claim: nodes with numbers, their rules for
the device cgroup, and bind mounts.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from sim.kubelet.containers import resolve
from sim.nvml.machine import GpuSpec
from tests.kubeletplugin.helpers.rig import A100, Rig
from tests.kubeletplugin.host.rootfs import compiled, private_mounts

RTX = "RTX-PRO-6000-Blackwell-Server"
_FIRST_ID, _IDS = 100_000, 65_536
_PROBE = """
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
int main(int count, char **paths) {
    for (int i = 1; i < count; i++) {
        struct stat found;
        if (stat(paths[i], &found)) { printf("%s missing\\n", paths[i]); continue; }
        errno = 0;
        int opened = open(paths[i], O_RDONLY);
        printf("%s %c %u:%u %d\\n", paths[i], S_ISCHR(found.st_mode) ? 'c' : '?',
               major(found.st_rdev), minor(found.st_rdev), opened < 0 ? errno : 0);
    }
    return 0;
}
"""
# The node's /dev with what the driver has made of it; a bundle where everybody may look for it.
_ENTER = """
bundle=$1 nodes=$2 runc=$3
mount -t tmpfs -o dev,mode=755 tmpfs /mnt
mkdir -p /mnt/bundle /mnt/dev/shm
mount --bind /dev/shm /mnt/dev/shm
cp -a "$bundle/." /mnt/bundle/
for name in null zero full random urandom tty; do cp -a "/dev/$name" /mnt/dev/; done
for node in "$nodes"/nvidia*; do [ ! -e "$node" ] || cp -a "$node" /mnt/dev/; done
mount --rbind /mnt/dev /dev
code=0
"$runc" --root /mnt/state run --bundle /mnt/bundle "mig-test-$$" || code=$?
"$runc" --root /mnt/state delete --force "mig-test-$$" || true
exit "$code"
"""


def runc() -> str:
    places = os.pathsep.join(
        [os.environ.get("KUBEBUILDER_ASSETS", ""), os.environ.get("PATH", ""), "/usr/sbin"]
    )
    found = shutil.which("runc", path=places)
    if found is None:
        pytest.skip("no runc to start a container with")
    if os.geteuid() != 0 or subprocess.run(["unshare", "--user", "true"], check=False).returncode:
        pytest.skip("not root, or no user namespaces: a container in one cannot be started")
    return found


def config(edits: Sequence[Mapping[str, Any]], command: Sequence[str]) -> dict[str, Any]:
    """An OCI configuration with a user namespace and CDI's edits."""
    nodes = [n for e in edits for n in e.get("deviceNodes", ())]
    mounts = [m for e in edits for m in e.get("mounts", ())]
    own = {"containerID": 0, "hostID": _FIRST_ID, "size": _IDS}
    options = ["nosuid", "strictatime", "mode=755", "size=65536k"]
    return {
        "ociVersion": "1.0.2",
        "process": {"user": {"uid": 0, "gid": 0}, "args": [*command], "cwd": "/"},
        "root": {"path": "rootfs"},
        "mounts": [
            {"destination": "/proc", "type": "proc", "source": "proc"},
            {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": options},
            *(
                {
                    "destination": m["containerPath"],
                    "type": "bind",
                    "source": m["hostPath"],
                    "options": ["rbind", "ro", "nosuid", "nodev"],
                }
                for m in mounts
            ),
        ],
        "linux": {
            "namespaces": [{"type": t} for t in ("pid", "mount", "ipc", "uts", "user")],
            "uidMappings": [own],
            "gidMappings": [own],
            "devices": [
                {"fileMode": 0o666} | {k: n[k] for k in ("path", "type", "major", "minor")}
                for n in nodes
            ],
            "resources": {
                "devices": [
                    {"allow": False, "access": "rwm"},
                    *(
                        {"allow": True, "type": "c", "access": "rwm"}
                        | {k: n[k] for k in ("major", "minor")}
                        for n in nodes
                    ),
                ]
            },
        },
    }


def start(folder: Path, nodes: Path, edits: Sequence[Mapping[str, Any]], *paths: str) -> str:
    """Start a container with these edits that looks at paths; what it and runc wrote."""
    bundle = folder / "bundle"
    program = runc()
    compiled(_PROBE, bundle / "rootfs/probe", "-static")
    (bundle / "config.json").write_text(json.dumps(config(edits, ["/probe", *paths])))
    for path in (bundle, *bundle.rglob("*")):
        os.chown(path, _FIRST_ID, _FIRST_ID)
        path.chmod(0o755)
    command = [*private_mounts(), "sh", "-euc", _ENTER, "sh", str(bundle), str(nodes), program]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    return done.stdout + done.stderr


@pytest.mark.parametrize(
    ("product", "device"), [(A100, "gpu-0-mig-1g5gb-19-4"), (RTX, "gpu-0-mig-1g24gb-gfx-47-0")]
)
def test_a_container_in_a_user_namespace_has_the_nodes_of_its_slice(
    make_rig: Callable[..., Rig], folder: Path, product: str, device: str
) -> None:
    rig = make_rig(GpuSpec(product))
    rig.machine.remove_nodes(makes=False)
    rig.start()
    edits = resolve(rig.roots.cdi, rig.prepared(rig.claim(device)))
    mounts = [
        {**m, "hostPath": f"{rig.machine.host_root}{m['hostPath']}"}
        for e in edits
        for m in e.get("mounts", ())
    ]
    nodes = [n for e in edits for n in e.get("deviceNodes", ()) if "/nvidia" in n["path"]]
    assert len(nodes) >= len(("nvidiactl", "uvm", "uvm-tools", "GPU", "instance", "compute"))
    shown = start(
        folder,
        rig.machine.host_root / "dev",
        [{"deviceNodes": nodes, "mounts": mounts}],
        *(n["path"] for n in nodes),
    )
    no_driver = errno.ENXIO  # neither EPERM of the device cgroup nor EACCES of a mount
    assert set(shown.splitlines()) == {
        f"{n['path']} c {n['major']}:{n['minor']} {no_driver}" for n in nodes
    }
