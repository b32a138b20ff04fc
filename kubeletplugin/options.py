"""Options of the node program: each flag, its default, its help and its value in one place."""
# ruff: noqa: RUF009 - a field is declared by its flag

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

import click

from dra.common.flags import ProcessOptions, flag, read_flags, with_flags
from dra.gpu.inventory import AllocatorKind
from dra.gpu.names import DEFAULT_DRIVER
from kubeletplugin.host.driverfiles import AUTO, NEVER
from kubeletplugin.host.libraries import LIBRARY_DIRECTORIES
from kubeletplugin.host.roots import Roots
from kubeletplugin.nvml.events import XidRules, read_rules

_DIRECTORY = click.Path(path_type=Path, file_okay=False)


class BindingConditions(StrEnum):
    """GPUs on which a pod is bound only once its slices are made."""

    NEVER = "never"
    AFTER_FAILURE = "after-failure"
    """Only GPUs on which a slice could not be made lately."""
    ALWAYS = "always"


def _words(text: str) -> tuple[str, ...]:
    return tuple(word for part in text.split(",") if (word := part.strip()))


def _directories(text: str) -> tuple[str, ...]:
    found = tuple(path for part in text.split(",") if (path := part.strip().strip("/")))
    if not found or any(".." in path.split("/") for path in found):
        raise click.BadParameter(
            f"{text!r} is no list of directories below the driver's root, such as usr/lib64,usr/lib"
        )
    return found


def _hook(text: str) -> str:
    if text in {AUTO, NEVER} or text.startswith("/"):
        return text
    raise click.BadParameter(
        f"{text!r} is neither {AUTO} nor {NEVER} nor the absolute path of the program on the host"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(ProcessOptions):
    """The plugin's settings, in the order of the program's help."""

    roots: Roots
    node_name: str = flag(
        None,
        "The node's name.  [required but for subcommands]",
        read=lambda given: given or "",
        envvar="NODE_NAME",
    )
    kubeconfig: str | None = flag(None, "Kubeconfig file; without, the pod's service account.")
    driver_name: str = flag(DEFAULT_DRIVER, "Name of the DRA driver.")
    allocator: AllocatorKind = flag(
        AllocatorKind.CONTROLLER.value,
        "Who allocates this node's GPUs.",
        read=AllocatorKind,
        type=click.Choice([a.value for a in AllocatorKind]),
    )
    library_directories: tuple[str, ...] = flag(
        ",".join(LIBRARY_DIRECTORIES),
        "Where below the driver's root its libraries may be, for this program and for containers;"
        " what the root's ld.so.cache names is looked through after them.",
        read=_directories,
        show_default="those of all known distributions",
        metavar="LIST",
    )
    program_directories: tuple[str, ...] = flag(
        "",
        "Where else below the driver's root its programs may be (nvidia-smi and those of MPS) than"
        " beside its libraries and where known distributions have them.",
        read=lambda text: _directories(text) if text else (),
        metavar="LIST",
    )
    cdi_hook: str = flag(
        AUTO,
        "NVIDIA's nvidia-cdi-hook on the node, which gives images that are newer than the driver"
        " forward compatibility: where it is there, never, or this one.",
        read=_hook,
        metavar="auto|never|PATH",
    )
    instance: str = flag("", "Tells this process from another during an update: the pod's UID.")
    enable_mig: bool = flag(
        False,
        "Turn MIG mode on where it is off: on idle GPUs, from Hopper on.",
        is_flag=True,
    )
    ignore_other_managers: bool = flag(
        False,
        "Offer GPUs although mig-manager, a device plugin or NVIDIA's DRA driver manages GPUs of"
        " this node. If it manages the same ones, pods lose their slices or get those of others.",
        is_flag=True,
    )
    node_classes: Path | None = flag(
        None,
        "Directory of files that configure classes of nodes (MigNodeClass), or have layouts as"
        " mig-parted's do. Without it slices are made for claims alone.",
        type=_DIRECTORY,
    )
    pause_labels: tuple[str, ...] = flag(
        "nvidia.com/gpu.deploy.*",  # driver-manager and MIG manager set all of these that are there
        "Keys of Node labels, with wildcards, that ask GPU clients to pause by a value with"
        " paused-for-.",
        read=_words,
        metavar="LIST",
    )
    nvml_timeout: float = flag(
        10.0,
        "Seconds after which an NVML call is taken to hang; six times that to change instances.",
        type=click.FloatRange(min=0.1),
    )
    forgotten_after: float = flag(
        120.0,
        "Seconds after which an ended claim that kubelet did not unprepare is removed: it looks"
        " every 60.",
        type=click.FloatRange(min=1),
    )
    eager_seconds: float = flag(
        120.0,
        "Seconds that a slice which was made before kubelet asked for it, as soon as its claim was"
        " allocated here, waits for its pod; 0 makes none.",
        type=click.FloatRange(min=0),
    )
    binding_conditions: BindingConditions = flag(
        BindingConditions.AFTER_FAILURE.value,
        "Where kube-scheduler allocates, have it bind pods only once their slices are made, which"
        " takes it five seconds or more: never, on GPUs where one could not be made lately, or"
        " always.",
        read=BindingConditions,
        type=click.Choice([b.value for b in BindingConditions]),
    )
    idle_seconds: float = flag(
        0.0,
        "Seconds that the GPU instance of a released slice is kept for the next claim of its"
        " namespace that is placed there, unless somebody needs its room otherwise.",
        type=click.FloatRange(min=0),
    )
    gpu_shares: int = flag(
        1,
        "How many claims may have a GPU at a time whose MIG mode is off, each with a part of its"
        " memory; 1 gives such GPUs whole.",
        type=click.IntRange(min=1),
    )
    slice_shares: int = flag(
        1,
        "How many claims of shares may have one slice at a time, each with a part of its memory; 1"
        " offers no shares of slices.",
        type=click.IntRange(min=1),
    )
    ignore_xids: str = flag(
        "",
        "XIDs that do not make a GPU or slice unhealthy, besides 13,31,43,45,68,109.",
        metavar="LIST|all",
    )
    fatal_xids: str = flag("", "XIDs that do, although they are ignored otherwise.", metavar="LIST")
    mps_image: str = flag(
        "",
        "Image with a shell, mkfifo and mknod for the pods of MPS daemons; without it, claims that"
        " are to be shared by MPS are refused.",
        metavar="IMAGE",
    )
    mps_namespace: str = flag(
        "",
        "Namespace of the pods of MPS daemons, where no tenant may make pods.",
        envvar="POD_NAMESPACE",
    )
    mps_pull_secrets: tuple[str, ...] = flag(
        "",
        "Secrets of that namespace with which kubelet pulls the image, by commas.",
        read=_words,
        metavar="LIST",
    )

    @classmethod
    def read(cls, given: Mapping[str, Any]) -> Options:
        """Options from the parameters of a command that has the flags of :func:`flags`.

        Raises:
            click.ClickException: a value is not understood, or two values do not fit together.
        """
        values = read_flags(cls, given)
        names = ("host_root", "driver_root", "cdi_root", "kubelet_root", "state_dir")
        places = {name: given[name] for name in names}
        options = cls(roots=Roots.of(**places, driver_name=values["driver_name"]), **values)
        if options.binding_conditions is BindingConditions.ALWAYS and not options.eager_seconds:
            raise click.ClickException(
                "--binding-conditions=always needs slices that are made before kubelet asks for "
                "them: give --eager-seconds more than 0, or --binding-conditions=never"
            )
        if options.mps_image and not options.mps_namespace:
            raise click.ClickException("--mps-image: name a namespace by --mps-namespace")
        try:
            options.xids  # noqa: B018 - refused at the start
        except ValueError as error:
            raise click.ClickException(f"--ignore-xids, --fatal-xids: {error}") from error
        # Without early slices a pod that waits for its slices would wait for ever.
        binding = options.binding_conditions if options.eager_seconds else BindingConditions.NEVER
        return replace(options, binding_conditions=binding)

    @property
    def xids(self) -> XidRules:
        """Rules by which XIDs make a GPU or slice unhealthy."""
        return read_rules(ignore=self.ignore_xids, fatal=self.fatal_xids)

    @property
    def pool(self) -> str:
        """Name of the pool of this node's devices, which is the Node's name."""
        return self.node_name

    @property
    def field_manager(self) -> str:
        """Field manager of this program's writes to the API server."""
        return f"{self.driver_name}/kubelet-plugin"


_BESIDE: dict[str, dict[str, Any]] = {
    "--kubelet-root": {
        "type": _DIRECTORY,
        "default": "/var/lib/kubelet",
        "help": "Kubelet's directory.",
    },
    "--cdi-root": {"type": _DIRECTORY, "default": "/var/run/cdi", "help": "Where CDI specs go."},
    "--host-root": {"type": _DIRECTORY, "default": "/", "help": "Where the host's / is seen."},
    "--driver-root": {
        "type": _DIRECTORY,
        "default": "auto",
        "help": "Root of the NVIDIA driver's files, as the host sees it; `auto` is"
        " /run/nvidia/driver while there is a driver container, else /.",
    },
    "--state-dir": {
        "type": _DIRECTORY,
        "help": "Where journal and GPU names are kept.  [default:"
        " <kubelet-root>/plugins/<driver-name>]",
    },
}
"""Flags that set no field of their own: roots of the host's files."""


def flags(command: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a command with the flags of the node program, which it takes as ``**given``."""
    for name, more in reversed(_BESIDE.items()):
        command = click.option(name, **more)(command)
    return with_flags(Options)(command)
