"""Finds the Kubernetes binaries."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

CONTROL_PLANE = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
"""Binaries of a control plane without a node."""

NODE = ("kubelet", "containerd", "containerd-shim-runc-v2", "ctr", "runc", "busybox")
"""Binaries of a node that runs pods, besides; ``busybox`` is the one program in its only image."""

ASSETS_VARIABLE = "KUBEBUILDER_ASSETS"
ENVTEST_STORE = Path(".local/share/kubebuilder-envtest/k8s")
"""Folder in which setup-envtest keeps its downloads, below the home directory."""

_STORED_VERSION = re.compile(r"(\d+)\.(\d+)\.(\d+)-linux-amd64")


@dataclass(frozen=True, slots=True)
class Binaries:
    """One directory that holds the binaries, as setup-envtest lays it out.

    Args:
        directory: holds the binaries themselves; need not exist.
        origin: how the directory was found, for the message about what is missing.
    """

    directory: Path
    origin: str

    def path(self, name: str) -> str:
        """The absolute path of a binary, present or not."""
        return str(self.directory / name)

    def missing(self, names: Iterable[str]) -> str:
        """Reason why what needs ``names`` cannot run; empty if it can."""
        absent = [name for name in names if not os.access(self.directory / name, os.X_OK)]
        if not absent:
            return ""
        return (
            f"no {', '.join(absent)} in {self.directory} ({self.origin}); "
            f"put them there or set {ASSETS_VARIABLE} to the directory that holds them"
        )


def find_binaries(environment: Mapping[str, str], *, home: Path) -> Binaries:
    """Takes the directory named by KUBEBUILDER_ASSETS, else setup-envtest's newest version.

    Without either, the answer is setup-envtest's (missing) directory, in which nothing is found.
    """
    if assets := environment.get(ASSETS_VARIABLE, ""):
        return Binaries(Path(assets), ASSETS_VARIABLE)
    store = home / ENVTEST_STORE
    entries = list(store.iterdir()) if store.is_dir() else []
    versions = [
        (tuple(int(part) for part in match.groups()), entry)
        for entry in entries
        if (match := _STORED_VERSION.fullmatch(entry.name))
    ]
    if not versions:
        return Binaries(store, f"{ASSETS_VARIABLE} is not set and setup-envtest stored no version")
    return Binaries(max(versions)[1], "the newest version that setup-envtest stored")
