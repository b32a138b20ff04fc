"""Device nodes of a slice's capabilities, made for as long as a program of ours uses the slice.

On a host nvidia-modprobe makes them when CUDA asks for it; a container of ours has no such program.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from kubeletplugin.check.errors import CheckError
from kubeletplugin.check.trying.tools import Place
from kubeletplugin.errors import HostError
from kubeletplugin.host.driver.caps import instance_capabilities
from kubeletplugin.host.roots import Roots

_READABLE = 0o444


@contextmanager
def capability_nodes(roots: Roots, place: Place, *, dev: Path = Path("/dev")) -> Iterator[None]:
    """Make the nodes that are missing, and remove those again.

    Raises:
        CheckError: the slice's numbers are not known, or a node cannot be made.
    """
    made: list[Path] = []
    try:
        _make(roots, place, dev, made)
        yield
    finally:
        for node in made:
            with suppress(OSError):
                node.unlink()


def _make(roots: Roots, place: Place, dev: Path, made: list[Path]) -> None:
    try:
        capabilities = instance_capabilities(
            roots, gpu_minor=place.gpu_minor, gi_id=place.gi_id, ci_id=place.ci_id
        )
        for capability in capabilities:
            node = dev / capability.path.removeprefix("/dev/")
            if not node.exists():
                node.parent.mkdir(exist_ok=True)
                numbers = os.makedev(capability.major, capability.minor)
                os.mknod(node, stat.S_IFCHR | _READABLE, numbers)
                made.append(node)
    except (HostError, OSError) as error:
        raise CheckError(f"no program can use the slice: {error}") from error
