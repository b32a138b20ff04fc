"""Flags of the node program."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import click

from dra.gpu.inventory import AllocatorKind
from dra.gpu.names import DEFAULT_DRIVER
from kubeletplugin.host.driver.hooks import AUTO, read_choice
from kubeletplugin.host.driver.libraries.libraries import LIBRARY_DIRECTORIES, read_directories
from kubeletplugin.host.options import DEPLOY_LABELS, BindingConditions

_DIRECTORY = click.Path(path_type=Path, file_okay=False)
_FLAGS = (
    click.option(
        "--node-name", envvar="NODE_NAME", help="The node's name.  [required but for subcommands]"
    ),
    click.option("--kubeconfig", help="Kubeconfig file; without, the pod's service account."),
    click.option("--driver-name", default=DEFAULT_DRIVER, help="Name of the DRA driver."),
    click.option(
        "--allocator",
        type=click.Choice([a.value for a in AllocatorKind]),
        default=AllocatorKind.CONTROLLER.value,
        help="Who allocates this node's GPUs.",
    ),
    click.option(
        "--kubelet-root", type=_DIRECTORY, default="/var/lib/kubelet", help="Kubelet's directory."
    ),
    click.option("--cdi-root", type=_DIRECTORY, default="/var/run/cdi", help="Where CDI specs go."),
    click.option("--host-root", type=_DIRECTORY, default="/", help="Where the host's / is seen."),
    click.option(
        "--driver-root",
        type=_DIRECTORY,
        default="auto",
        help="Root of the NVIDIA driver's files, as the host sees it; `auto` is /run/nvidia/driver "
        "while there is a driver container, else /.",
    ),
    click.option(
        "--library-directories",
        default=",".join(LIBRARY_DIRECTORIES),
        show_default="those of all known distributions",
        callback=lambda _context, _option, text: read_directories(text),
        metavar="LIST",
        help="Where below the driver's root its libraries may be, for this program and for"
        " containers; what the root's ld.so.cache names is looked through after them.",
    ),
    click.option(
        "--cdi-hook",
        default=AUTO,
        callback=lambda _context, _option, text: read_choice(text),
        metavar="auto|never|PATH",
        help="NVIDIA's nvidia-cdi-hook on the node, which gives images that are newer than the"
        " driver forward compatibility: where it is there, never, or this one.",
    ),
    click.option(
        "--state-dir",
        type=_DIRECTORY,
        help="Where journal and GPU names are kept.  [default:"
        " <kubelet-root>/plugins/<driver-name>]",
    ),
    click.option(
        "--instance",
        default="",
        help="Tells this process from another during an update: the pod's UID.",
    ),
    click.option(
        "--enable-mig",
        is_flag=True,
        help="Turn MIG mode on where it is off: on idle GPUs, from Hopper on.",
    ),
    click.option(
        "--ignore-other-managers",
        is_flag=True,
        help="Offer GPUs although mig-manager, a device plugin or NVIDIA's DRA driver manages"
        " GPUs of this node. If it manages the same ones, pods lose their slices or get those of"
        " others.",
    ),
    click.option(
        "--node-classes",
        type=_DIRECTORY,
        help="Directory of files that configure classes of nodes (MigNodeClass), or have layouts as"
        " mig-parted's do. Without it slices are made for claims alone.",
    ),
    click.option(
        "--pause-labels",
        default=",".join(DEPLOY_LABELS),
        metavar="LIST",
        help="Keys of Node labels, with wildcards, that ask GPU clients to pause by a value with"
        " paused-for-.",
    ),
    click.option(
        "--nvml-timeout",
        type=click.FloatRange(min=0.1),
        default=10.0,
        help="Seconds after which an NVML call is taken to hang; six times that to change"
        " instances.",
    ),
    click.option(
        "--forgotten-after",
        type=click.FloatRange(min=1),
        default=120.0,
        help="Seconds after which an ended claim that kubelet did not unprepare is removed: it"
        " looks every 60.",
    ),
    click.option(
        "--eager-seconds",
        type=click.FloatRange(min=0),
        default=120.0,
        help="Seconds that a slice which was made before kubelet asked for it, as soon as its"
        " claim was allocated here, waits for its pod; 0 makes none.",
    ),
    click.option(
        "--binding-conditions",
        type=click.Choice([b.value for b in BindingConditions]),
        default=BindingConditions.AFTER_FAILURE.value,
        help="Where kube-scheduler allocates, have it bind pods only once their slices are made,"
        " which takes it five seconds or more: never, on GPUs where one could not be made"
        " lately, or always.",
    ),
    click.option(
        "--device-overhead",
        default="",
        help="What each container with a device takes of the node besides, as"
        " memory=512Mi,cpu=100m: counted where kube-scheduler allocates, from Kubernetes 1.37"
        " on, with the feature gate DRANodeAllocatableResources.",
    ),
    click.option(
        "--idle-seconds",
        type=click.FloatRange(min=0),
        default=0.0,
        help="Seconds that the GPU instance of a released slice is kept for the next claim of its"
        " namespace that is placed there, unless somebody needs its room otherwise.",
    ),
    click.option(
        "--gpu-shares",
        type=click.IntRange(min=1),
        default=1,
        help="How many claims may have a GPU at a time whose MIG mode is off, each with a part"
        " of its memory; 1 gives such GPUs whole.",
    ),
    click.option(
        "--slice-shares",
        type=click.IntRange(min=1),
        default=1,
        help="How many claims of shares may have one slice at a time, each with a part of its"
        " memory; 1 offers no shares of slices.",
    ),
    click.option(
        "--ignore-xids",
        default="",
        metavar="LIST|all",
        help="XIDs that do not make a GPU or slice unhealthy, besides 13,31,43,45,68,109.",
    ),
    click.option(
        "--fatal-xids",
        default="",
        metavar="LIST",
        help="XIDs that do, although they are ignored otherwise.",
    ),
    click.option(
        "--mps-image",
        default="",
        metavar="IMAGE",
        help="Image with a shell, mkfifo and mknod for the pods of MPS daemons; without it, claims"
        " that are to be shared by MPS are refused.",
    ),
    click.option(
        "--mps-namespace",
        default="",
        envvar="POD_NAMESPACE",
        help="Namespace of the pods of MPS daemons, where no tenant may make pods.",
    ),
    click.option(
        "--mps-pull-secrets",
        default="",
        metavar="LIST",
        help="Secrets of that namespace with which kubelet pulls the image, by commas.",
    ),
    click.option(
        "--metrics-address",
        default="",
        metavar="HOST:PORT",
        help="Serve metrics and probes (/metrics, /healthz, /readyz) here, such as :8080;"
        " without it, nowhere.",
    ),
    click.option(
        "--log-level",
        type=click.Choice(["debug", "info", "warning", "error"], case_sensitive=False),
        default="info",
        help="How much is logged.",
    ),
    click.option(
        "--log-format",
        type=click.Choice(["text", "json"]),
        default="text",
        help="For people, or one JSON object a line.",
    ),
)


def flags(function: Callable[..., None]) -> Callable[..., None]:
    """Give a command the flags of the node program, in the order of its help."""
    for flag in reversed(_FLAGS):
        function = flag(function)
    return function
