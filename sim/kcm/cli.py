"""``python -m sim kcm``."""

from __future__ import annotations

import click

from dra.kube.client import KubeApi
from sim.daemon import configure_logging, run_until_signal
from sim.kcm.controller import ClaimController


@click.command()
@click.option("--kubeconfig", type=click.Path(exists=True, dir_okay=False))
@click.option("--log-level", default="info", show_default=True)
def main(kubeconfig: str | None, log_level: str) -> None:
    """Stand in for what kube-controller-manager does with ResourceClaims."""
    configure_logging(log_level)
    run_until_signal(ClaimController(KubeApi.connect(kubeconfig, user_agent="kcm-stand-in")))
