"""``python -m controller.webhook``: the webhooks as a program."""

from __future__ import annotations

import datetime as dt
import threading

import click

from controller.webhook.certificates import Keeper, Place
from controller.webhook.server import WebhookServer
from dra.common.program import Format, configure, log_options, stop_on_signals
from dra.gpu.names import DEFAULT_DRIVER
from dra.kube.client import KubeApi
from dra.kube.errors import KubeConfigError


@click.command(context_settings={"auto_envvar_prefix": "MIG_WEBHOOK"})
@click.option(
    "--kubeconfig", metavar="PATH", help="Kubeconfig file; without it in-cluster, then KUBECONFIG."
)
@click.option(
    "--driver-name", default=DEFAULT_DRIVER, show_default=True, help="Name of the DRA driver."
)
@click.option("--namespace", default="mig-dra-driver", show_default=True, help="Of the Secret.")
@click.option("--secret", required=True, help="Keeps the certificate; it must exist.")
@click.option(
    "--configuration",
    required=True,
    help="The ValidatingWebhookConfiguration that is told whom to trust.",
)
@click.option(
    "--mutating-configuration",
    default="",
    help="A MutatingWebhookConfiguration that is told as well.",
)
@click.option(
    "--host-name",
    "names",
    multiple=True,
    required=True,
    help="DNS name or IP address under which the API server calls; may be given several times.",
)
@click.option("--port", default=8443, show_default=True, type=click.IntRange(0, 65535))
@click.option(
    "--certificate-hours",
    default=720.0,
    show_default=True,
    type=click.FloatRange(min=0, min_open=True),
    help="Life of a certificate; it is replaced when a third is left.",
)
@log_options
def main(  # noqa: PLR0913 - one parameter per flag
    *,
    kubeconfig: str | None,
    driver_name: str,
    namespace: str,
    secret: str,
    configuration: str,
    mutating_configuration: str,
    names: tuple[str, ...],
    port: int,
    certificate_hours: float,
    log_level: str,
    log_format: Format,
) -> None:
    """Refuse configuration that the driver cannot read, and make claims of limits."""
    configure(log_level, log_format)
    try:
        api = KubeApi.connect(kubeconfig, user_agent="mig-dra-webhook")
    except KubeConfigError as error:
        raise click.ClickException(f"no access to a Kubernetes API: {error}") from error
    try:
        server = WebhookServer(("", port), driver=driver_name)
    except OSError as error:
        raise click.ClickException(f"--port: cannot listen on {port}: {error}") from error
    keeper = Keeper(
        api,
        Place(namespace, secret, configuration, mutating_configuration),
        names=names,
        lifetime=dt.timedelta(hours=certificate_hours),
        serve=server.serve,
        now=lambda: dt.datetime.now(dt.UTC),
    )
    stop = threading.Event()
    stop_on_signals(stop.set)
    threading.Thread(target=server.serve_forever, name="https", daemon=True).start()
    keeper.run(stop)
    server.shutdown()
    api.close()


if __name__ == "__main__":
    main()
