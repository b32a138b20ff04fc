"""Options of the controller: each flag, its default and its help in one place."""
# ruff: noqa: RUF009 - a field is declared by its flag

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click

from dra.common.flags import ProcessOptions, flag
from dra.gpu.names import DEFAULT_DRIVER, finalizer
from dra.pods.pods import DEFAULT_SCHEDULER


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(ProcessOptions):
    """The controller's settings, in the order of the program's help."""

    kubeconfig: str | None = flag(
        None,
        "Kubeconfig file; without it in-cluster, then KUBECONFIG.",
        metavar="PATH",
    )
    driver_name: str = flag(DEFAULT_DRIVER, "Name of the DRA driver.")
    leader_elect: bool = flag(
        True, "Only one of several controllers allocates.", name="--leader-elect/--no-leader-elect"
    )
    identity: str = flag(
        "",
        "Name in the lease: <namespace>/<pod>, by which replicas and other installations are told "
        "apart; default: host name and a suffix.",
    )
    finalizer_at_creation: bool = flag(
        False,
        "Leave the finalizer on claims until they are deleted: a MutatingAdmissionPolicy puts it "
        "there when they are created, which saves a write for each pod. Without, it is there from "
        "the decision about a claim until nobody uses the claim.",
        is_flag=True,
    )
    eager_creation: bool = flag(
        True,
        "Name in a label of each claim the node that it is allocated to, so that the node makes "
        "its slice before kubelet asks for it.",
        name="--eager-creation/--no-eager-creation",
    )
    evict_failed: bool = flag(
        True,
        "Evict pods that are bound where their slice cannot be made, if nothing of them has run "
        "and a controller makes others; their label, class or claim may say otherwise.",
        name="--evict-failed/--no-evict-failed",
    )
    moves_per_hour: int = flag(
        0,
        "Move so many pods an hour, at the most, so that a pod has room which waits: those with "
        "label <driver>/movable=true, on nodes with label <driver>/defrag=true. 0: only where an "
        "administrator asks for it (kubectl mig defrag --execute).",
        type=click.IntRange(0, 1000),
        metavar="N",
    )
    preemption: bool = flag(
        False,
        "End pods of lower priority so that one of higher priority has room.",
        is_flag=True,
    )
    autoscaler: bool = flag(
        False,
        "Where kube-scheduler allocates, send it a few gated pods of each namespace that have no "
        "room, so that an autoscaler sees them.",
        is_flag=True,
    )
    schedulers: tuple[str, ...] = flag(
        (DEFAULT_SCHEDULER,),
        "Serve pods of this scheduler (their schedulerName); may be given several times. A pod of "
        "another waits: nobody might ever bind it, and what it had would be lost to others.",
        name="--scheduler",
        multiple=True,
    )
    node_labels: bool = flag(
        False,
        "Keep labels on nodes that tell of their GPUs, as NVIDIA's GPU feature discovery does, "
        "where that does not run.",
        is_flag=True,
    )
    node_classes: Path | None = flag(
        None,
        "Directory of files that say what becomes of the GPUs of classes of nodes, as the nodes "
        "have it: what is wrong with them is told of the Nodes that are concerned.",
        type=click.Path(path_type=Path),
        metavar="DIR",
    )

    @property
    def finalizer(self) -> str:
        """Our finalizer on claims, and the scheduling gate that we lift."""
        return finalizer(self.driver_name)
