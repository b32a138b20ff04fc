"""Session that every command is given: the cluster, the namespace, and the output."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from cli.shell.output import Output
from dra.gpu.names import DEFAULT_DRIVER
from dra.kube.client import KubeApi


@dataclass(frozen=True, slots=True)
class Session:
    """One run of a command. ``now`` gives the time in UTC; ``pause`` waits for some seconds."""

    api: KubeApi
    out: Output
    namespace: str
    now: Callable[[], datetime]
    pause: Callable[[float], None]
    driver: str = DEFAULT_DRIVER
