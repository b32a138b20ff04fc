"""``python -m sim scheduler``."""

from __future__ import annotations

import click

from dra.kube.client import KubeApi
from sim.daemon import configure_logging, run_until_signal
from sim.scheduler.scheduler import Scheduler


@click.command()
@click.option("--kubeconfig", type=click.Path(exists=True, dir_okay=False))
@click.option("--log-level", default="info", show_default=True)
def main(kubeconfig: str | None, log_level: str) -> None:
    """Stand in for kube-scheduler; it allocates no devices itself."""
    configure_logging(log_level)
    run_until_signal(Scheduler(KubeApi.connect(kubeconfig, user_agent="scheduler-stand-in")))
