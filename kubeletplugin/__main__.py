"""Command line of the node program, ``python -m kubeletplugin``."""

from __future__ import annotations

import ctypes
import gc
import sys
import threading
from typing import Any

import click

from dra.common.program import Format, configure, stop_on_signals
from dra.kube.client import KubeApi, check_served
from dra.kube.errors import KubeConfigError, NotServedError
from dra.monitoring.metrics import ApiRequests, daemon_registry
from dra.monitoring.probes import Probes
from dra.monitoring.server import AddressError, serving
from kubeletplugin import times
from kubeletplugin.daemon.daemon import serve
from kubeletplugin.errors import PluginError
from kubeletplugin.nvml.errors import serve_node
from kubeletplugin.options import Options, flags
from kubeletplugin.telemetry.telemetry import Telemetry

_M_ARENA_MAX = -8  # malloc.h
_SWITCH_SECONDS = 0.0005
"""Python's switch interval. After each call of NVML and of the system a thread waits for the
interpreter: with the default of 5 ms, a thread that prepares a claim would wait for threads that
publish dozens of times as long as it works."""


class _Program(click.Group):
    """Command of the daemon; the module of a subcommand is imported only to run it."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """The subcommands."""
        return ["check"]

    def get_command(
        self,
        ctx: click.Context,  # noqa: ARG002 - click's signature
        cmd_name: str,
    ) -> click.Command | None:
        """Import the subcommand; None for an unknown name."""
        if cmd_name != "check":
            return None
        from kubeletplugin.check.command import check  # noqa: PLC0415 - the daemon has no use for it

        return check


@click.group(
    cls=_Program,
    invoke_without_command=True,
    context_settings={"show_default": True, "max_content_width": 100},
)
@flags
@click.pass_context
def main(context: click.Context, /, **given: Any) -> None:
    """Prepare MIG slices for the pods of one node; with a subcommand, do that instead."""
    serve_node(given["node_name"] or "")
    if context.invoked_subcommand is not None:
        return
    if not given["node_name"]:
        raise click.MissingParameter(ctx=context, param_hint="'--node-name'", param_type="option")
    options = Options.read(given)
    _one_arena()
    sys.setswitchinterval(_SWITCH_SECONDS)
    registry, probes = daemon_registry(), Probes()
    telemetry = Telemetry(registry, probes)
    style: Format = "json" if options.log_format == "json" else "text"
    configure(options.log_level, style, enrich=telemetry.claims.add_pods)
    stop = threading.Event()
    stop_on_signals(stop.set)
    try:
        api = KubeApi.connect(
            options.kubeconfig,
            user_agent=options.field_manager,
            timeout_seconds=times.API_SECONDS,
            observe=ApiRequests(registry),
        )
        check_served(api)
        gc.freeze()  # a full collection, which stops all threads, then skips the modules' objects
        with serving(options.metrics_address, registry, probes):
            serve(options, api, telemetry, stop)
    except AddressError as error:
        raise click.ClickException(f"--metrics-address: {error}") from error
    except (KubeConfigError, NotServedError, PluginError) as error:
        raise click.ClickException(str(error)) from error


def _one_arena() -> None:
    """Have all threads allocate memory from one arena, if the C library is glibc.

    By default glibc makes up to eight arenas per core, none of which ever shrinks: they cost 2 MiB
    after a few scrapes of metrics. To be called before threads start.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, 1)


if __name__ == "__main__":
    main()
