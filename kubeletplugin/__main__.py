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
from dra.gpu.names import DEFAULT_DRIVER
from dra.kube.client.served import check_served
from dra.kube.client.transport import KubeApi
from dra.kube.errors import KubeConfigError, NotServedError
from dra.monitoring.apirequests import ApiRequests
from dra.monitoring.probes import Probes
from dra.monitoring.registry import daemon_registry
from dra.monitoring.server import AddressError, serving
from dra.resourceslices.overhead import read_overhead
from kubeletplugin.daemon.serving import serve
from kubeletplugin.errors import PluginError
from kubeletplugin.host.driver.hooks import AUTO, read_choice
from kubeletplugin.host.driver.libraries.libraries import LIBRARY_DIRECTORIES, read_directories
from kubeletplugin.host.memory import one_arena
from kubeletplugin.host.options import DEPLOY_LABELS, BindingConditions, Options
from kubeletplugin.host.roots import Roots
from kubeletplugin.nvml.xids import read_rules
from kubeletplugin.telemetry.telemetry import Telemetry

# Kubelet gives a Prepare 45 s: the claim's lookup must leave room for the hardware.
_API_SECONDS = 10.0
_SWITCH_SECONDS = 0.0005
"""A thread takes the interpreter back after each call of NVML and of the system: with the usual
5 ms, one that prepares a claim waits for those that publish dozens of times as long as it works."""
_DIRECTORY = click.Path(path_type=Path, file_okay=False)


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
@click.option(
    "--node-name", envvar="NODE_NAME", help="The node's name.  [required but for subcommands]"
)
@click.option("--kubeconfig", help="Kubeconfig file; without, the pod's service account.")
@click.option("--driver-name", default=DEFAULT_DRIVER, help="Name of the DRA driver.")
@click.option(
    "--allocator",
    type=click.Choice([a.value for a in AllocatorKind]),
    default=AllocatorKind.CONTROLLER.value,
    help="Who allocates this node's GPUs.",
)
@click.option(
    "--kubelet-root", type=_DIRECTORY, default="/var/lib/kubelet", help="Kubelet's directory."
)
@click.option("--cdi-root", type=_DIRECTORY, default="/var/run/cdi", help="Where CDI specs go.")
@click.option("--host-root", type=_DIRECTORY, default="/", help="Where the host's / is seen.")
@click.option(
    "--driver-root",
    type=_DIRECTORY,
    default="auto",
    help="Root of the NVIDIA driver's files, as the host sees it; `auto` is /run/nvidia/driver "
    "while there is a driver container, else /.",
)
@click.option(
    "--library-directories",
    default=",".join(LIBRARY_DIRECTORIES),
    show_default="those of all known distributions",
    callback=lambda _context, _option, text: read_directories(text),
    metavar="LIST",
    help="Where below the driver's root its libraries may be, for this program and for containers; "
    "what the root's ld.so.cache names is looked through after them.",
)
@click.option(
    "--cdi-hook",
    default=AUTO,
    callback=lambda _context, _option, text: read_choice(text),
    metavar="auto|never|PATH",
    help="NVIDIA's nvidia-cdi-hook on the node, which gives images that are newer than the driver "
    "forward compatibility: where it is there, never, or this one.",
)
@click.option(
    "--state-dir",
    type=_DIRECTORY,
    help="Where journal and GPU names are kept.  [default: <kubelet-root>/plugins/<driver-name>]",
)
@click.option(
    "--instance",
    default="",
    help="Tells this process from another during an update: the pod's UID.",
)
@click.option(
    "--enable-mig",
    is_flag=True,
    help="Turn MIG mode on where it is off: on idle GPUs, from Hopper on.",
)
@click.option(
    "--ignore-other-managers",
    is_flag=True,
    help="Offer GPUs although mig-manager, a device plugin or NVIDIA's DRA driver manages GPUs of"
    " this node. If it manages the same ones, pods lose their slices or get those of others.",
)
@click.option(
    "--node-classes",
    type=_DIRECTORY,
    help="Directory of files that configure classes of nodes (MigNodeClass), or have layouts as"
    " mig-parted's do. Without it slices are made for claims alone.",
)
@click.option(
    "--pause-labels",
    default=",".join(DEPLOY_LABELS),
    metavar="LIST",
    help="Keys of Node labels, with wildcards, that ask GPU clients to pause by a value with"
    " paused-for-.",
)
@click.option(
    "--nvml-timeout",
    type=click.FloatRange(min=0.1),
    default=10.0,
    help="Seconds after which an NVML call is taken to hang; six times that to change instances.",
)
@click.option(
    "--forgotten-after",
    type=click.FloatRange(min=1),
    default=120.0,
    help="Seconds after which an ended claim that kubelet did not unprepare is removed: it looks"
    " every 60.",
)
@click.option(
    "--eager-seconds",
    type=click.FloatRange(min=0),
    default=120.0,
    help="Seconds that a slice which was made before kubelet asked for it, as soon as its claim was"
    " allocated here, waits for its pod; 0 makes none.",
)
@click.option(
    "--binding-conditions",
    type=click.Choice([b.value for b in BindingConditions]),
    default=BindingConditions.AFTER_FAILURE.value,
    help="Where kube-scheduler allocates, have it bind pods only once their slices are made, which"
    " takes it five seconds or more: never, on GPUs where one could not be made lately, or always.",
)
@click.option(
    "--device-overhead",
    default="",
    help="What each container with a device takes of the node besides, as memory=512Mi,cpu=100m:"
    " counted where kube-scheduler allocates, from Kubernetes 1.37 on, with the feature gate"
    " DRANodeAllocatableResources.",
)
@click.option(
    "--idle-seconds",
    type=click.FloatRange(min=0),
    default=0.0,
    help="Seconds that the GPU instance of a released slice is kept for the next claim of its"
    " namespace that is placed there, unless somebody needs its room otherwise.",
)
@click.option(
    "--gpu-shares",
    type=click.IntRange(min=1),
    default=1,
    help="How many claims may have a GPU at a time whose MIG mode is off, each with a part of its"
    " memory; 1 gives such GPUs whole.",
)
@click.option(
    "--slice-shares",
    type=click.IntRange(min=1),
    default=1,
    help="How many claims of shares may have one slice at a time, each with a part of its memory;"
    " 1 offers no shares of slices.",
)
@click.option(
    "--ignore-xids",
    default="",
    metavar="LIST|all",
    help="XIDs that do not make a GPU or slice unhealthy, besides 13,31,43,45,68,109.",
)
@click.option(
    "--fatal-xids",
    default="",
    metavar="LIST",
    help="XIDs that do, although they are ignored otherwise.",
)
@click.option(
    "--mps-image",
    default="",
    metavar="IMAGE",
    help="Image with a shell and mkfifo for the pods of MPS daemons; without it, claims that are to"
    " be shared by MPS are refused.",
)
@click.option(
    "--mps-namespace",
    default="",
    envvar="POD_NAMESPACE",
    help="Namespace of the pods of MPS daemons, where no tenant may make pods.",
)
@click.option(
    "--metrics-address",
    default="",
    metavar="HOST:PORT",
    help="Serve metrics and probes (/metrics, /healthz, /readyz) here, such as :8080;"
    " without it, nowhere.",
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"], case_sensitive=False),
    default="info",
    help="How much is logged.",
)
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    default="text",
    help="For people, or one JSON object a line.",
)
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
