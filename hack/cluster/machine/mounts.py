"""A mount namespace for each node, so that several nodes live on one machine.

What a node mounts ends with its last process, and every node sees its own directories under the
paths that all nodes have in common, as the nodes of a cluster of machines do.
"""

from __future__ import annotations

import contextlib
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from hack.cluster.machine.processes import Process
from hack.cluster.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Mapping


class MountNamespace:
    """Mounts that only the processes started `within` it see; the machine's own go on to be seen.

    Args:
        name: names the log of the process that holds the namespace.
        shown: path, which exists, to the directory that is seen there.
        logs: directory for the log.
    """

    def __init__(self, name: str, *, shown: Mapping[Path, Path], logs: Path) -> None:
        mounts = [shlex.join(["mount", "--bind", str(to), str(at)]) for at, to in shown.items()]
        script = " && ".join([*mounts, "echo mounted", "exec sleep infinity"])
        self._holder = Process(
            name, ["unshare", "--mount", "--propagation", "slave", "sh", "-euc", script], logs=logs
        )
        self._identity = ""

    def open(self) -> None:
        """Makes the namespace.

        Raises:
            ClusterError: the mounts failed.
        """
        self._holder.log.unlink(missing_ok=True)
        self._holder.start()
        wait_for("mounts", self._mounted, timeout=30, interval=0.02)
        self._identity = _namespace(self._holder.pid)

    def within(self) -> list[str]:
        """Words before a command that make it run in the namespace."""
        return ["nsenter", f"--mount=/proc/{self._holder.pid}/ns/mnt", "--"]

    def close(self) -> None:
        """Ends the process that holds it; the namespace is gone with the last of its members."""
        self._holder.kill()

    def members(self) -> list[int]:
        """The processes in it, which ended ones have left."""
        pids = [int(each.name) for each in Path("/proc").iterdir() if each.name.isdigit()]
        return [pid for pid in pids if self._identity and _namespace(pid) == self._identity]

    def _mounted(self) -> bool:
        self._holder.assert_running()
        return "mounted" in self._holder.log.read_text()


def _namespace(pid: int) -> str:
    with contextlib.suppress(OSError):
        return str(Path(f"/proc/{pid}/ns/mnt").readlink())
    return ""
