"""``python -m kubeletplugin``: the node program's command line."""

from __future__ import annotations

import gc
import signal
import sys
import threading
from pathlib import Path

import click

from dra.common.logs import Format, configure
from dra.gpu.inventory import AllocatorKind
from dra.kube.client import KubeApi, check_served
from dra.kube.errors import KubeConfigError, NotServedError
from dra.monitoring.metrics import ApiRequests, daemon_registry
from dra.monitoring.probes import Probes
from dra.monitoring.server import AddressError, serving
from dra.resourceslices.overhead import read_overhead
from kubeletplugin.daemon.flags import flags
from kubeletplugin.daemon.serving import serve
from kubeletplugin.errors import PluginError
from kubeletplugin.host.memory import one_arena
from kubeletplugin.host.options import BindingConditions, Options
from kubeletplugin.host.roots import Roots
from kubeletplugin.nvml.xids import read_rules
from kubeletplugin.telemetry.telemetry import Telemetry

# Kubelet gives a Prepare 45 s: the claim's lookup must leave room for the hardware.
_API_SECONDS = 10.0
_SWITCH_SECONDS = 0.0005
"""A thread takes the interpreter back after each call of NVML and of the system: with the usual
5 ms, one that prepares a claim waits for those that publish dozens of times as long as it works."""


class _Program(click.Group):
    """The daemon; what is not the daemon is imported only to be run."""

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
def main(  # noqa: PLR0913 - the flags
    context: click.Context,
    *,
    node_name: str | None,
    kubeconfig: str | None,
    driver_name: str,
    allocator: str,
    kubelet_root: Path,
    cdi_root: Path,
    host_root: Path,
    driver_root: Path,
    library_directories: tuple[str, ...],
    cdi_hook: str,
    state_dir: Path | None,
    instance: str,
    enable_mig: bool,
    ignore_other_managers: bool,
    node_classes: Path | None,
    pause_labels: str,
    nvml_timeout: float,
    forgotten_after: float,
    eager_seconds: float,
    binding_conditions: str,
    device_overhead: str,
    idle_seconds: float,
    gpu_shares: int,
    slice_shares: int,
    ignore_xids: str,
    fatal_xids: str,
    mps_image: str,
    mps_namespace: str,
    mps_pull_secrets: str,
    metrics_address: str,
    log_level: str,
    log_format: str,
) -> None:
    """Prepare MIG slices for the pods of one node; with a subcommand, do that instead."""
    if context.invoked_subcommand is not None:
        return
    if not node_name:
        raise click.MissingParameter(ctx=context, param_hint="'--node-name'", param_type="option")
    binding = BindingConditions(binding_conditions)
    if binding is BindingConditions.ALWAYS and not eager_seconds:
        raise click.ClickException(
            "--binding-conditions=always needs slices that are made before kubelet asks for them: "
            "give --eager-seconds more than 0, or --binding-conditions=never"
        )
    one_arena()
    sys.setswitchinterval(_SWITCH_SECONDS)
    registry, probes = daemon_registry(), Probes()
    telemetry = Telemetry(registry, probes)
    style: Format = "json" if log_format == "json" else "text"
    configure(log_level, style, enrich=telemetry.claims.add_pods)
    try:
        xids = read_rules(ignore=ignore_xids, fatal=fatal_xids)
    except ValueError as error:
        raise click.ClickException(f"--ignore-xids, --fatal-xids: {error}") from error
    try:
        overhead = read_overhead(device_overhead)
    except ValueError as error:
        raise click.ClickException(f"--device-overhead: {error}") from error
    options = Options(
        node_name=node_name,
        driver_name=driver_name,
        kubeconfig=kubeconfig,
        allocator=AllocatorKind(allocator),
        roots=Roots.of(
            host_root=host_root,
            driver_root=driver_root,
            cdi_root=cdi_root,
            kubelet_root=kubelet_root,
            state_dir=state_dir,
            driver_name=driver_name,
        ),
        instance=instance,
        enable_mig=enable_mig,
        ignore_other_managers=ignore_other_managers,
        node_classes=node_classes,
        pause_labels=tuple(k.strip() for k in pause_labels.split(",") if k.strip()),
        nvml_seconds=nvml_timeout,
        forgotten_seconds=forgotten_after,
        eager_seconds=eager_seconds,
        binding_conditions=binding if eager_seconds else BindingConditions.NEVER,
        device_overhead=overhead,
        idle_seconds=idle_seconds,
        gpu_shares=gpu_shares,
        slice_shares=slice_shares,
        xids=xids,
        library_directories=library_directories,
        cdi_hook=cdi_hook,
        mps_image=mps_image,
        mps_namespace=mps_namespace,
        mps_pull_secrets=tuple(s.strip() for s in mps_pull_secrets.split(",") if s.strip()),
    )
    if mps_image and not mps_namespace:
        raise click.ClickException("--mps-image: name a namespace by --mps-namespace")
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    try:
        api = KubeApi.connect(
            kubeconfig,
            user_agent=options.field_manager,
            timeout_seconds=_API_SECONDS,
            observe=ApiRequests(registry),
        )
        check_served(api)
        gc.freeze()  # a full collection need not look through modules, with all threads held up
        with serving(metrics_address, registry, probes):
            serve(options, api, telemetry, stop)
    except AddressError as error:
        raise click.ClickException(f"--metrics-address: {error}") from error
    except (KubeConfigError, NotServedError, PluginError) as error:
        raise click.ClickException(str(error)) from error


if __name__ == "__main__":
    main()
