"""``python -m cli.page``: the page in the cluster, for readers with a token of the cluster."""

from __future__ import annotations

import sys
import threading
from datetime import UTC, datetime
from pathlib import Path

import click

from cli.output import CliError, Output
from cli.page.reviews import reviewed_readers
from cli.page.server import LOOPBACK, PageServer
from cli.page.source import ClusterSource, mirrored
from cli.session import Session
from dra.common.program import Format, configure, log_options, stop_on_signals
from dra.gpu.names import DEFAULT_DRIVER
from dra.kube.client import KubeApi
from dra.kube.errors import KubeError


@click.command(context_settings={"auto_envvar_prefix": "MIG_PAGE"})
@click.option(
    "--kubeconfig", metavar="PATH", help="Kubeconfig file; without it in-cluster, then KUBECONFIG."
)
@click.option(
    "--driver-name", default=DEFAULT_DRIVER, show_default=True, help="Name of the DRA driver."
)
@click.option("--port", default=8444, show_default=True, type=click.IntRange(0, 65535))
@click.option(
    "--tls",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder with tls.crt and tls.key. Without it only loopback is served, as for kubectl "
    "port-forward: tokens never cross a network in clear.",
)
@click.option(
    "--host-name",
    "names",
    multiple=True,
    help="DNS name or IP address under which browsers ask, besides loopback; may be repeated.",
)
@log_options
def main(  # noqa: PLR0913 - one parameter per flag
    *,
    kubeconfig: str | None,
    driver_name: str,
    port: int,
    tls: Path | None,
    names: tuple[str, ...],
    log_level: str,
    log_format: Format,
) -> None:
    """Show each reader what the reader's own token allows."""
    configure(log_level, log_format)
    stop = threading.Event()
    stop_on_signals(stop.set)
    try:
        api = KubeApi.connect(kubeconfig, user_agent="mig-dra-page")
        output, now = Output(sys.stdout), lambda: datetime.now(UTC)
        session = Session(api, output, "", now, driver=driver_name)
        with mirrored(session, namespace="") as (mirrors, content, evaluator):
            find = reviewed_readers(api)
            source = ClusterSource(session, mirrors, content, find_reader=find, evaluator=evaluator)
            address = ("" if tls is not None else "127.0.0.1", port)
            with PageServer(address, source, hosts=LOOPBACK | {*names}, tls=tls) as server:
                thread = threading.Thread(target=server.serve_forever, name="http", daemon=True)
                thread.start()
                stop.wait()
                server.shutdown()
        api.close()
    except (KubeError, CliError) as error:
        raise click.ClickException(f"no access to a Kubernetes API: {error}") from error
    except OSError as error:
        raise click.ClickException(f"cannot serve on port {port}: {error}") from error


if __name__ == "__main__":
    main()
