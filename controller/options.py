"""Options of the controller: each flag, its default and its help in one place."""
# ruff: noqa: RUF009 - a field is declared by its flag

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import click

from dra.gpu.names import DEFAULT_DRIVER, finalizer
from dra.pods.pods import DEFAULT_SCHEDULER


def _flag(flag: str, default: Any, help_: str | None = None, **more: Any) -> Any:
    """A field that ``flag`` sets, by the arguments that click.option takes."""
    shown = {"show_default": default not in (None, "", False)}
    given = {"default": default, "help": help_, **shown, **more}
    return field(default=default, metadata={"flag": flag, "given": given})


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The controller's settings, in the order of the program's help."""

    kubeconfig: str | None = _flag(
        "--kubeconfig",
        None,
        "Kubeconfig file; without it in-cluster, then KUBECONFIG.",
        metavar="PATH",
    )
    driver_name: str = _flag("--driver-name", DEFAULT_DRIVER, "Name of the DRA driver.")
    leader_elect: bool = _flag(
        "--leader-elect/--no-leader-elect", True, "Only one of several controllers allocates."
    )
    identity: str = _flag(
        "--identity",
        "",
        "Name in the lease: <namespace>/<pod>, by which replicas and other installations are told "
        "apart; default: host name and a suffix.",
    )
    finalizer_at_creation: bool = _flag(
        "--finalizer-at-creation",
        False,
        "Leave the finalizer on claims until they are deleted: a MutatingAdmissionPolicy puts it "
        "there when they are created, which saves a write for each pod. Without, it is there from "
        "the decision about a claim until nobody uses the claim.",
        is_flag=True,
    )
    eager_creation: bool = _flag(
        "--eager-creation/--no-eager-creation",
        True,
        "Name in a label of each claim the node that it is allocated to, so that the node makes "
        "its slice before kubelet asks for it.",
    )
    evict_failed: bool = _flag(
        "--evict-failed/--no-evict-failed",
        True,
        "Evict pods that are bound where their slice cannot be made, if nothing of them has run "
        "and a controller makes others; their label, class or claim may say otherwise.",
    )
    moves_per_hour: int = _flag(
        "--moves-per-hour",
        0,
        "Move so many pods an hour, at the most, so that a pod has room which waits: those with "
        "label <driver>/movable=true, on nodes with label <driver>/defrag=true. 0: only where an "
        "administrator asks for it (kubectl mig defrag --execute).",
        type=click.IntRange(0, 1000),
        metavar="N",
    )
    preemption: bool = _flag(
        "--preemption",
        False,
        "End pods of lower priority so that one of higher priority has room.",
        is_flag=True,
    )
    autoscaler: bool = _flag(
        "--autoscaler",
        False,
        "Where kube-scheduler allocates, send it a few gated pods of each namespace that have no "
        "room, so that an autoscaler sees them.",
        is_flag=True,
    )
    schedulers: tuple[str, ...] = _flag(
        "--scheduler",
        (DEFAULT_SCHEDULER,),
        "Serve pods of this scheduler (their schedulerName); may be given several times. A pod of "
        "another waits: nobody might ever bind it, and what it had would be lost to others.",
        multiple=True,
    )
    node_labels: bool = _flag(
        "--node-labels",
        False,
        "Keep labels on nodes that tell of their GPUs, as NVIDIA's GPU feature discovery does, "
        "where that does not run.",
        is_flag=True,
    )
    node_classes: Path | None = _flag(
        "--node-classes",
        None,
        "Directory of files that say what becomes of the GPUs of classes of nodes, as the nodes "
        "have it: what is wrong with them is told of the Nodes that are concerned.",
        type=click.Path(path_type=Path),
        metavar="DIR",
    )
    metrics_address: str = _flag(
        "--metrics-address",
        "",
        "Serve metrics and probes (/metrics, /healthz, /readyz) here, such as :8080; without it, "
        "nowhere.",
        metavar="HOST:PORT",
    )
    log_level: str = _flag(
        "--log-level",
        "info",
        "How much is logged.",
        type=click.Choice(["debug", "info", "warning", "error"]),
    )
    log_format: str = _flag(
        "--log-format",
        "text",
        "For people, or for log collectors.",
        type=click.Choice(["text", "json"]),
    )

    @property
    def finalizer(self) -> str:
        """Our finalizer on claims, and the scheduling gate that we lift."""
        return finalizer(self.driver_name)


def flags(command: Callable[..., Any]) -> Callable[..., Any]:
    """``command`` with an option for each field."""
    for each in reversed(fields(Options)):
        flag = each.metadata["flag"]
        command = click.option(flag, each.name, **each.metadata["given"])(command)
    return command
