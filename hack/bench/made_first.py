"""Cost of making slices before their claims are allocated, beside making them meanwhile.

A simulated cluster of one node: pods one after the other, and a burst of as many as fit, from their
creation until they run. The machine's own speed is in both.

    python -m hack.bench.made_first --seconds 0 --seconds 0.5
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from itertools import count
from statistics import median
from typing import Literal

import click

from dra.common.resources import PODS, RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS, Obj
from dra.gpu.names import DEFAULT_DRIVER
from dra.kube.client.transport import KubeApi
from hack.cluster.waiting import wait_for
from sim.cluster.cluster import Cluster, ClusterShape, running_cluster
from sim.nvml.faults import Fault

GPUS = ("A100-SXM4-40GB",) * 4
FITS = 7 * len(GPUS)
MODES: tuple[Literal["allocated", "made"], ...] = ("allocated", "made")
CREATE = "nvmlDeviceCreateGpuInstanceWithPlacement"
_POLL_SECONDS = 0.01
_PATIENCE = 180.0


def template(bind_when: str) -> Obj:
    """A template of one small slice; its name is the mode."""
    parameters = {
        "apiVersion": "mig.dra.dev/v1alpha1",
        "kind": "MigDeviceConfig",
        "preparation": {"bindWhen": bind_when},
    }
    devices = {
        "requests": [{"name": "r", "exactly": {"deviceClassName": "mig-1g.5gb"}}],
        "config": [{"opaque": {"driver": DEFAULT_DRIVER, "parameters": parameters}}],
    }
    metadata = {"name": bind_when, "namespace": "default"}
    return {"metadata": metadata, "spec": {"spec": {"devices": devices}}}


def pod(name: str, mode: str) -> Obj:
    """A pod with one claim of a template."""
    container = {"name": "c", "image": "i", "resources": {"claims": [{"name": "gpu"}]}}
    claims = [{"name": "gpu", "resourceClaimTemplateName": mode}]
    return {
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"containers": [container], "resourceClaims": claims},
    }


def running(api: KubeApi) -> set[str]:
    """The names of the pods that run."""
    pods = api.list(PODS).items
    return {p["metadata"]["name"] for p in pods if p.get("status", {}).get("phase") == "Running"}


def start(api: KubeApi, names: Iterable[str], mode: str) -> float:
    """Seconds from the creation of pods until the last of them runs."""
    wanted, began = {*names}, time.monotonic()
    for name in sorted(wanted):
        api.create(PODS, pod(name, mode))
    wait_for(
        "running pods",
        lambda: wanted <= running(api),
        timeout=_PATIENCE,
        interval=_POLL_SECONDS,
    )
    return time.monotonic() - began


def clear(api: KubeApi) -> None:
    """Delete all pods, and wait until their claims are gone."""
    for each in api.list(PODS).items:
        api.delete(PODS, each["metadata"]["name"], namespace="default")
    wait_for("end of claims", lambda: not api.list(RESOURCE_CLAIMS).items, timeout=_PATIENCE)


def measure(cluster: Cluster, mode: str, *, pods: int, names: Iterable[int]) -> tuple[float, float]:
    """Median of single pods, and of the last of a burst, in seconds."""
    numbers = iter(names)
    single = []
    for _ in range(pods):
        single.append(start(cluster.api, [f"p-{next(numbers)}"], mode))
        clear(cluster.api)
    bursts = []
    for _ in range(3):
        bursts.append(start(cluster.api, [f"p-{next(numbers)}" for _ in range(FITS)], mode))
        clear(cluster.api)
    return median(single), median(bursts)


@click.command(help=__doc__)
@click.option("--seconds", multiple=True, type=float, default=(0.0, 0.5), help="of a creation")
@click.option("--pods", default=5, show_default=True, help="one after the other")
def main(seconds: tuple[float, ...], pods: int) -> None:
    """Print one row for each duration and mode."""
    numbers = count()
    print(f"{'creation':>8}  {'bindWhen':<9}  {'one pod':>8}  {f'{FITS} pods':>8}")
    with running_cluster(ClusterShape(nodes=1, gpus=GPUS)) as cluster:
        for mode in MODES:
            cluster.api.create(RESOURCE_CLAIM_TEMPLATES, template(mode))
        for each in seconds:
            machine = cluster.places[0].machine
            machine.clear_faults()
            if each:
                machine.inject(Fault(function=CREATE, action="delay", seconds=each, times=0))
            for mode in MODES:
                single, burst = measure(cluster, mode, pods=pods, names=numbers)
                print(f"{each:>8}  {mode:<9}  {single * 1000:>5.0f} ms  {burst * 1000:>5.0f} ms")


if __name__ == "__main__":
    main()
