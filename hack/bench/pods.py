"""Pods with a slice against pods without: ``python -m hack.bench.pods``, as root.

A real control plane, one kubelet with its container runtime, our controller, and our node program
over a compiled ``libnvidia-ml.so.1`` without hardware. Measured is the time from the request that
creates a pod to its running, by a watch; pods with and without a claim take turns, so that both see
the same machine. Claims are made from a template, as most are, the API server puts our finalizer on
them, as the chart has it from Kubernetes 1.36 on. CDI specs are in memory, as below /run on nodes.
Everything shares the machine's cores: the difference within one run counts.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from statistics import median

import click

from api.crds import mignode_definition
from dra.common.resources import (
    CUSTOM_RESOURCE_DEFINITIONS,
    DEVICE_CLASSES,
    RESOURCE_CLAIM_TEMPLATES,
    Obj,
)
from dra.gpu.inventory import AllocatorKind
from dra.gpu.names import class_name
from dra.kube.client import KubeApi
from hack.bench.control.objects import claim_spec
from hack.bench.control.podstarts import TEMPLATE, PodStarts
from hack.bench.node import library
from hack.bench.node.figures import Row, rendered
from hack.bench.node.node import NODE as NODE_NAME
from hack.bench.node.node import Place, Plugin
from hack.cluster.binaries import CONTROL_PLANE, NODE, find_binaries
from hack.cluster.driver.claimpolicy import FLAG, finalizers_at_creation
from hack.cluster.driver.kubeletclaims import kubelets_read_claims
from hack.cluster.machine.processes import Process
from hack.cluster.node.kubelet import KubeletNode
from hack.cluster.plane import credentials
from hack.cluster.plane.controlplane import ControlPlane
from hack.cluster.waiting import wait_for
from sim.nvml.machine import GpuSpec, Machine

_PRODUCT, _PROFILE, _GPUS, _EACH = "H100-80GB-HBM3", "1g.10gb", 4, 7
BURSTS = (0, 200, 1000)
"""Milliseconds that making a GPU instance takes."""
_MEMORY = "/dev/shm"  # noqa: S108 - as nodes have /var/run/cdi
_MOST = {0: 1200.0, 200: 2000.0, 1000: 6000.0}
_RIVAL = {0: "1,400 ms", 200: "5,000 ms", 1000: "102,000 ms"}


def rows(
    pods: PodStarts, api: KubeApi, place: Place, *flags: str, count: int, rounds: int
) -> Iterator[Row]:
    """The time that a claim adds to a pod, and to a burst of pods; ``flags`` are the plugin's."""
    flags = ("--driver-root", str(place.host_root), *flags)
    with pods.watched():
        for create_ms in BURSTS:
            now = replace(place, create_ms=create_ms)
            with Plugin(now, *flags).running(api):
                wait_for("the class", lambda: _has_class(api))
                for claims in (False, True):
                    pods.run(1, claims=claims)  # what is loaded on first use
                if not create_ms:
                    pods.begin()
                    single = _turns(pods, 1, count)
                    yield from _pair("pod", "one pod", single, most=50.0, rival="65 ms")
                    yield from _steps(pods)
                key, what = f"pods-{create_ms}", f"{_GPUS * _EACH} pods, creation {create_ms} ms"
                burst = _turns(pods, _GPUS * _EACH, rounds)
                yield from _pair(key, what, burst, most=_MOST[create_ms], rival=_RIVAL[create_ms])


def _has_class(api: KubeApi) -> bool:
    return class_name(_PROFILE) in {c["metadata"]["name"] for c in api.list(DEVICE_CLASSES).items}


def _steps(pods: PodStarts) -> Iterator[Row]:
    for claims, of_step in pods.steps.items():
        key, what = ("pod", "with a claim") if claims else ("plain", "without")
        for step, taken in of_step.items():
            if taken:
                name = f"{key}-{step.replace(' ', '-')}"
                words = f"the same pod {what}: created to {step} ({len(taken)} pods)"
                yield Row(name, words, median(taken), "ms")


def _turns(pods: PodStarts, count: int, rounds: int) -> tuple[list[float], list[float]]:
    without, with_claims = [], []
    for _ in range(rounds):
        without.append(pods.run(count, claims=False))
        with_claims.append(pods.run(count, claims=True))
    return without, with_claims


def _pair(
    key: str, what: str, taken: tuple[Sequence[float], Sequence[float]], *, most: float, rival: str
) -> Iterator[Row]:
    without, with_claims = map(median, taken)
    yield Row(f"{key}-plain", f"{what}, without a claim: created to running", without, "ms")
    more = with_claims - without
    yield Row(
        f"{key}-more",
        "what a claim for a slice adds",
        more,
        "ms",
        ratio=with_claims / without,
        most=most,
        rival=rival,
    )


@click.command()
@click.option("--count", default=15, show_default=True, help="Pods one after the other.")
@click.option("--rounds", default=3, show_default=True, help="Bursts of each kind.")
@click.option(
    "--allocator",
    type=click.Choice([a.value for a in AllocatorKind]),
    default=AllocatorKind.CONTROLLER.value,
    show_default=True,
    help="Who allocates.",
)
@click.option("--own-finalizer", is_flag=True, help="The controller puts it on, as before 1.36.")
@click.option("--role", is_flag=True, help="Kubelets read claims by the chart's role.")
def main(*, count: int, rounds: int, allocator: str, own_finalizer: bool, role: bool) -> None:
    """Print a table: what a claim adds to the start of pods."""
    binaries = find_binaries(os.environ, home=Path.home())
    if reason := binaries.missing((*CONTROL_PLANE, *NODE)):
        click.echo(f"skipped: {reason}")
        return
    root = Path(tempfile.mkdtemp(prefix="b", dir="/tmp"))
    for name in ("cp", "n", "s", "logs"):
        (root / name).mkdir()
    users = (credentials.node_user(NODE_NAME),)
    with (
        tempfile.TemporaryDirectory(dir=_MEMORY) as memory,
        ControlPlane(binaries, root / "cp", users=users) as plane,
        KubeletNode(
            binaries, plane, name=NODE_NAME, root=root / "n", shown=root / "s", cdi=Path(memory)
        ) as node,
    ):
        kubeconfig = plane.kubeconfig(credentials.ADMIN)
        api = KubeApi.connect(str(kubeconfig), user_agent="bench", timeout_seconds=60)
        api.create(CUSTOM_RESOURCE_DEFINITIONS, mignode_definition())
        machine = Machine.create(root / "hw", [GpuSpec(_PRODUCT)] * _GPUS)
        (machine.directory / "nvml.txt").write_text(library.description(machine))
        chosen = library.build(root).absolute()
        place = Place(
            node.kubelet_root.parent,
            machine.host_root,
            kubeconfig,
            chosen,
            machine.directory,
            kubelet=node.kubelet_root.name,
        )
        policy = nullcontext() if own_finalizer else finalizers_at_creation(plane.api)
        flags = () if own_finalizer else (FLAG,)
        reading = kubelets_read_claims(plane.api) if role else nullcontext()
        with policy, reading, _controller(kubeconfig, root / "logs", *flags):
            api.create(RESOURCE_CLAIM_TEMPLATES, _template())
            kind = AllocatorKind(allocator)
            pods = PodStarts(api, has_pods=node.has_pods)
            starts = ("--allocator", kind.value, "--cdi-root", str(node.cdi_root))
            found = [*rows(pods, api, place, *starts, count=count, rounds=rounds)]
        api.close()
    shutil.rmtree(root)
    click.echo(rendered(found))


@contextmanager
def _controller(kubeconfig: Path, logs: Path, *flags: str) -> Iterator[None]:
    command = [sys.executable, "-m", "controller", "--kubeconfig", str(kubeconfig), *flags]
    process = Process("controller", [*command, "--no-leader-elect"], logs=logs)
    process.start()
    try:
        yield
    finally:
        process.stop()


def _template() -> Obj:
    return {
        "metadata": {"name": TEMPLATE, "namespace": "default"},
        "spec": {"spec": claim_spec(_PROFILE)},
    }


if __name__ == "__main__":
    main()
