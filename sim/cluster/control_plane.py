"""``python -m sim control-plane``: claim controller and scheduler stand-ins in one process."""

from __future__ import annotations

import click

from dra.kube.client import KubeApi
from sim.daemon import configure_logging, run_until_signal
from sim.kcm.controller import ClaimController
from sim.scheduler.scheduler import Scheduler


@click.command()
@click.option("--kubeconfig", type=click.Path(exists=True, dir_okay=False))
@click.option("--log-level", default="info", show_default=True)
def main(kubeconfig: str | None, log_level: str) -> None:
    """Stand in for kube-controller-manager and kube-scheduler."""
    configure_logging(log_level)
    run_until_signal(
        ClaimController(KubeApi.connect(kubeconfig, user_agent="kcm-stand-in")),
        Scheduler(KubeApi.connect(kubeconfig, user_agent="scheduler-stand-in")),
    )
