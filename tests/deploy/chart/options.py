"""Every option of the programs, and what of the chart sets it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from controller.cli import main as controller
from dra.common.resources import Obj
from kubeletplugin.__main__ import main as kubeletplugin


@dataclass(frozen=True)
class Program:
    """A program, the component of the chart that runs it, and the module as people call it."""

    component: str
    module: str
    command: click.Command
    template: str
    values: Obj


PROGRAMS = {
    program.module: program
    for program in (
        Program("controller", "controller", controller, "controller.yaml", {}),
        Program("kubelet-plugin", "kubeletplugin", kubeletplugin, "kubelet-plugin.yaml", {}),
    )
}

Given = tuple[str, Any, Any]
"""A value's path in values.yaml, one that is not the default, and what the program makes of it."""

BY_VALUE: dict[str, dict[str, Given]] = {
    "controller": {
        "--driver-name": ("driverName", "a.example", "a.example"),
        "--node-labels": ("nodeLabels.enabled", True, True),
        "--finalizer-at-creation": ("finalizerAtCreation.enabled", False, False),
        "--eager-creation": ("eagerCreation.enabled", False, False),
        "--evict-failed": ("evictFailed.enabled", False, False),
        "--autoscaler": ("autoscaler.enabled", True, True),
        "--moves-per-hour": ("defrag.movesPerHour", 6, 6),
        "--preemption": ("preemption.enabled", True, True),
        "--scheduler": (
            "schedulers",
            ["default-scheduler", "volcano"],
            ("default-scheduler", "volcano"),
        ),
        "--node-classes": (
            "nodeClasses.configMaps",
            ["mig-parted"],
            Path("/etc/mig.dra.dev/node-classes"),
        ),
        "--metrics-address": ("metrics.port", 9400, ":9400"),
        "--log-level": ("logLevel", "debug", "debug"),
        "--log-format": ("logFormat", "json", "json"),
    },
    "kubeletplugin": {
        "--driver-name": ("driverName", "a.example", "a.example"),
        "--allocator": ("allocator", "scheduler", "scheduler"),
        "--kubelet-root": ("kubeletPlugin.kubeletRoot", "/srv/kubelet", Path("/srv/kubelet")),
        "--cdi-root": ("kubeletPlugin.cdiRoot", "/etc/cdi", Path("/etc/cdi")),
        "--driver-root": ("kubeletPlugin.driverRoot", "/opt/nvidia", Path("/opt/nvidia")),
        "--library-directories": (
            "kubeletPlugin.libraryDirectories",
            ["usr/lib64", "opt/nvidia"],
            "usr/lib64,opt/nvidia",
        ),
        "--program-directories": (
            "kubeletPlugin.programDirectories",
            ["opt/bin", "opt/nvidia/bin"],
            "opt/bin,opt/nvidia/bin",
        ),
        "--cdi-hook": ("kubeletPlugin.cdiHook", "never", "never"),
        "--mps-image": ("mps.enabled", True, "dra-driver-nvidia-mig/kubelet-plugin:0.1.0"),
        "--state-dir": ("kubeletPlugin.stateDir", "/srv/state", Path("/srv/state")),
        "--enable-mig": ("kubeletPlugin.enableMig", True, True),
        "--ignore-other-managers": ("kubeletPlugin.ignoreOtherManagers", True, True),
        "--node-classes": (
            "nodeClasses.configMaps",
            ["mig-parted"],
            Path("/etc/mig.dra.dev/node-classes"),
        ),
        "--pause-labels": ("kubeletPlugin.pauseLabels", ["a.example/*", "b"], "a.example/*,b"),
        "--nvml-timeout": ("kubeletPlugin.nvmlTimeout", 30, 30.0),
        "--forgotten-after": ("kubeletPlugin.forgottenAfter", 300, 300.0),
        "--eager-seconds": ("eagerCreation.seconds", 300, 300.0),
        "--binding-conditions": ("bindingConditions", "always", "always"),
        "--idle-seconds": ("kubeletPlugin.idleSeconds", 60, 60.0),
        "--gpu-shares": ("kubeletPlugin.gpuShares", 4, 4),
        "--slice-shares": ("kubeletPlugin.sliceShares", 4, 4),
        "--ignore-xids": ("kubeletPlugin.ignoreXids", [31, 94], "31,94"),
        "--fatal-xids": ("kubeletPlugin.fatalXids", [63], "63"),
        "--metrics-address": ("metrics.port", 9400, ":9400"),
        "--log-level": ("logLevel", "debug", "debug"),
        "--log-format": ("logFormat", "json", "json"),
    },
}

_ACCOUNT = "The pod's service account, which the chart's roles are bound to."

BY_THE_CHART: dict[str, dict[str, str]] = {
    "controller": {
        "--kubeconfig": _ACCOUNT,
        "--leader-elect": "Always: during an update two controllers run.",
        "--identity": "The release's namespace and the pod's name.",
    },
    "kubeletplugin": {
        "--node-name": "The node of the pod, by the downward API.",
        "--kubeconfig": _ACCOUNT,
        "--host-root": "Where the chart mounts the node's /.",
        "--mps-namespace": "That of the release, with --mps-image.",
        "--mps-pull-secrets": "Those of the image, with --mps-image.",
        "--instance": "The pod's UID: tells apart the sockets of two pods during an update.",
    },
}


def options(program: Program) -> dict[str, click.Option]:
    """The options that ``--help`` lists, by their long names, but ``--help`` itself."""
    context = program.command.make_context(program.module, [], resilient_parsing=True)
    found = {}
    for each in program.command.get_params(context):
        if isinstance(each, click.Option) and not each.hidden and "--help" not in each.opts:
            found[max(each.opts, key=len)] = each
    return found


def nested(path: str, value: Any) -> Obj:
    """The values with only this one set."""
    for name in reversed(path.split(".")):
        value = {name: value}
    found: Obj = value
    return found
