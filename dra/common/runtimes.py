"""Container runtimes: what they read of CDI, by the version that a Node says of its own.

Sources: the version of container-device-interface in go.mod of each release, and the first release
that reads the field ``CDIDevices`` of the CRI, by which kubelet names devices.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from dra.common.resources import Obj, at

_READS: Final[dict[str, tuple[tuple[tuple[int, int, int], str], ...]]] = {
    "containerd": (((1, 7, 2), "0.5.0"), ((1, 7, 12), "0.6.0"), ((1, 7, 16), "0.7.0")),
    "cri-o": (((1, 28, 0), "0.6.0"), ((1, 30, 0), "0.7.0")),
}
"""By runtime: from which version on it reads CDI specs up to which version, none before."""
_ON_BY_DEFAULT: Final = (2, 0, 0)
"""Version of containerd from which on CDI is on without being configured."""
_VERSION = re.compile(r"([a-z-]+)://v?(\d+)\.(\d+)(?:\.(\d+))?")


def runtime_of(node: Obj) -> str:
    """The runtime of a Node and its version, such as ``containerd://2.1.4``; empty if not told."""
    return str(at(node, "status", "nodeInfo", "containerRuntimeVersion", default=""))


@lru_cache(maxsize=16)
def refusal(runtime: str, *, needs: str = "0.5.0") -> str:
    """Reason why containers of a runtime would start without their device; empty if none is known.

    ``runtime``: as of :func:`runtime_of`. ``needs``: CDI version of the specs, the oldest that any
    has by default.
    """
    if runtime.startswith("docker://"):
        # cri-dockerd up to 0.4.3, the newest, does not read the field (core/container_create.go).
        return (
            f"the container runtime is Docker ({runtime}), and cri-dockerd drops CDI devices: "
            "containers would start without their slice; let kubelet use containerd or CRI-O"
        )
    name, number = _parsed(runtime)
    table = _READS.get(name)
    if table is None:
        return ""
    reads = [cdi for since, cdi in table if number >= since]
    if reads and reads[-1] >= needs:
        return ""
    enough = next(".".join(map(str, since)) for since, cdi in table if cdi >= needs)
    does = f"reads CDI specs up to {reads[-1]}, and {needs} is needed" if reads else "reads no CDI"
    return f"the container runtime {runtime} {does}; upgrade {name} to {enough} or newer"


def doubt(runtime: str) -> str:
    """Settings without which a runtime reads no CDI specs, in words; empty if none."""
    name, number = _parsed(runtime)
    if name != "containerd" or number >= _ON_BY_DEFAULT or refusal(runtime):
        return ""
    return f"{runtime} reads CDI specs only with enable_cdi = true in its CRI configuration"


def _parsed(runtime: str) -> tuple[str, tuple[int, int, int]]:
    found = _VERSION.match(runtime)
    if found is None:
        return "", (0, 0, 0)
    name, major, minor, patch = found.groups(default="0")
    return name, (int(major), int(minor), int(patch))
