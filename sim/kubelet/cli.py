"""``python -m sim kubelet``."""

from __future__ import annotations

from pathlib import Path

import click

from dra.kube.client import KubeApi
from sim.daemon import configure_logging, run_until_signal
from sim.kubelet.agent import Kubelet, Settings
from sim.kubelet.node import NodeShape, parse_labels, parse_taint
from sim.kubelet.plugins.slices import WIPING_SECONDS
from sim.kubelet.pods.runner import Retries


@click.command()
@click.option("--node-name", required=True)
@click.option("--kubeconfig", type=click.Path(exists=True, dir_okay=False))
@click.option("--kubelet-root", type=click.Path(path_type=Path), required=True)
@click.option("--cdi-root", type=click.Path(path_type=Path), required=True)
@click.option("--cpu", default="8", show_default=True, help="Allocatable cpu.")
@click.option("--memory", default="32Gi", show_default=True, help="Allocatable memory.")
@click.option("--max-pods", default="110", show_default=True, help="Allocatable pods.")
@click.option("--label", multiple=True, metavar="KEY=VALUE", help="Label of the node.")
@click.option("--taint", multiple=True, metavar="KEY[=VALUE]:EFFECT", help="Taint of a new node.")
@click.option(
    "--retry-seconds",
    default=60.0,
    show_default=True,
    help="Pause after a failed NodePrepareResources; up to a half is added.",
)
@click.option(
    "--reconcile-seconds",
    default=60.0,
    show_default=True,
    help="How often claims of force-deleted pods are looked for.",
)
@click.option(
    "--wipe-seconds",
    default=WIPING_SECONDS,
    show_default=True,
    help="How long a plugin may be gone before its ResourceSlices are deleted.",
)
@click.option("--log-level", default="info", show_default=True)
def main(  # noqa: PLR0913, PLR0917 - one parameter per option
    node_name: str,
    kubeconfig: str | None,
    kubelet_root: Path,
    cdi_root: Path,
    cpu: str,
    memory: str,
    max_pods: str,
    label: tuple[str, ...],
    taint: tuple[str, ...],
    retry_seconds: float,
    reconcile_seconds: float,
    wipe_seconds: float,
    log_level: str,
) -> None:
    """Stand in for kubelet and the container runtime of one node."""
    configure_logging(log_level)
    try:
        shape = NodeShape(
            name=node_name,
            cpu=cpu,
            memory=memory,
            pods=max_pods,
            labels=parse_labels(label),
            taints=tuple(parse_taint(text) for text in taint),
        )
    except ValueError as error:
        raise click.BadParameter(str(error)) from error
    settings = Settings(
        root=kubelet_root.absolute(),
        cdi_root=cdi_root.absolute(),
        retries=Retries(prepare=retry_seconds),
        reconcile_seconds=reconcile_seconds,
        wipe_seconds=wipe_seconds,
    )
    api = KubeApi.connect(kubeconfig, user_agent="kubelet-stand-in")
    run_until_signal(Kubelet(api, shape, settings))
