"""Options of the command line."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from dra.gpu.inventory import AllocatorKind
from dra.resourceslices.overhead import Overhead
from kubeletplugin.host.driver.hooks import AUTO
from kubeletplugin.host.driver.libraries.libraries import LIBRARY_DIRECTORIES
from kubeletplugin.host.roots import Roots
from kubeletplugin.nvml.xids import XidRules

DEPLOY_LABELS = ("nvidia.com/gpu.deploy.*",)
"""Labels of GPU clients: driver-manager and MIG manager set all of these that are there, those for
other programs too, when they ask for a pause."""


class BindingConditions(StrEnum):
    """GPUs whose slices kube-scheduler binds a pod to only once they are made."""

    NEVER = "never"
    AFTER_FAILURE = "after-failure"
    """Those on which a slice could not be made lately."""
    ALWAYS = "always"


@dataclass(frozen=True, slots=True)
class Options:
    """The plugin's settings; ``kubeconfig`` is None for the pod's service account.

    ``instance`` tells apart the sockets of two plugins during an update: the pod's UID.
    ``nvml_seconds`` is the deadline of an NVML call that changes nothing, ``xids`` says which XIDs
    count, ``forgotten_seconds`` how long kubelet may take to unprepare a claim that has ended.
    ``eager_seconds`` is how long a slice that was made before kubelet asked waits for its pod; 0
    makes none. ``binding_conditions`` says where kube-scheduler, if it allocates, is to bind pods
    only once their slices are made. ``device_overhead`` is what kube-scheduler, if it allocates, is
    to count of the node for each container with a device. ``idle_seconds`` is how long the GPU
    instance of a released slice is kept.
    ``gpu_shares`` is how many claims may have a GPU at a time that is not in MIG mode,
    ``slice_shares`` how many claims of shares may have one slice.
    ``library_directories`` are below the driver's root, ``cdi_hook`` is ``auto``, ``never`` or a
    path of the host.
    ``node_classes`` is the directory of files that configure classes of nodes, if there is one.
    ``mps_image`` is that of the pods of MPS daemons, which run in ``mps_namespace``; none if empty.
    ``mps_pull_secrets`` are Secrets there with which kubelet gets it.
    ``pause_labels`` are the keys, with wildcards, of labels that ask GPU clients to pause.
    """

    node_name: str
    driver_name: str
    kubeconfig: str | None
    allocator: AllocatorKind
    roots: Roots
    instance: str = ""
    enable_mig: bool = False
    ignore_other_managers: bool = False
    nvml_seconds: float = 10.0
    forgotten_seconds: float = 120.0
    eager_seconds: float = 120.0
    binding_conditions: BindingConditions = BindingConditions.AFTER_FAILURE
    device_overhead: Overhead = ()
    idle_seconds: float = 0.0
    node_classes: Path | None = None
    gpu_shares: int = 1
    slice_shares: int = 1
    pause_labels: tuple[str, ...] = DEPLOY_LABELS
    xids: XidRules = field(default_factory=XidRules)
    library_directories: tuple[str, ...] = LIBRARY_DIRECTORIES
    cdi_hook: str = AUTO
    mps_image: str = ""
    mps_namespace: str = ""
    mps_pull_secrets: tuple[str, ...] = ()

    @property
    def pool(self) -> str:
        """The pool of this node's devices."""
        return self.node_name

    @property
    def field_manager(self) -> str:
        """The name under which this program writes to the API."""
        return f"{self.driver_name}/kubelet-plugin"
