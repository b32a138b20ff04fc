"""``python -m sim demo``: the story that ``make demo`` tells, and the manifests that it applies."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from dra.common.resources import PODS, RESOURCE_CLAIM_TEMPLATES, Obj, Resource, at
from dra.gpu.names import DEFAULT_DRIVER
from dra.gpu.placement_map import draw
from dra.kube.errors import ObjectNotFoundError
from sim.cluster.cluster import Cluster
from sim.cluster.processes import ClusterError
from sim.cluster.terminal import (
    NamespaceObserver,
    Placement,
    Terminal,
    cdi_excerpt,
    container_excerpt,
    device_data,
)

NAMESPACE = "default"
LATE, LEAVER, SHARER = "solver-c", "solver-a", "server-a"
_CONTROLLER = f"{DEFAULT_DRIVER}/controller"
_RESOURCES = {"Pod": PODS, "ResourceClaimTemplate": RESOURCE_CLAIM_TEMPLATES}
_STEP_SECONDS = 120.0


class Tour:
    """Shows a fresh cluster at work, and checks every claim that it makes about it.

    ``check`` raises what interrupts it.
    """

    def __init__(self, cluster: Cluster, terminal: Terminal, check: Callable[[], None]) -> None:
        self._cluster = cluster
        self._api = cluster.api
        self._say = terminal
        self._check = check
        self._slices = 0
        self._observer = NamespaceObserver(cluster, NAMESPACE, self._running)

    def run(self) -> int:
        """Takes the whole tour; returns how many slices were cut.

        Raises:
            ClusterError: something is not as the tour says.
        """
        with self._observer:
            self._fill()
            self._look_inside()
            self._wait_and_leave()
            self._clean_up()
        return self._slices

    def _fill(self) -> None:
        self._say.heading("1  Pods ask for slices")
        self._say.say(
            "A ResourceClaimTemplate names a DeviceClass such as mig-1g.5gb; a pod names the "
            "template. The controller allocates, the scheduler binds, the plugin cuts the slice:"
        )
        self._say.line()
        self._apply("1-templates.yaml")
        names = []
        for pod in _manifest("2-pods.yaml"):
            # In this order there is room for all of them; pods that come at once are served in any.
            names.append(pod["metadata"]["name"])
            self._create(pod)
            self._wait(f"{names[-1]} has a place", lambda: self._is_placed(names[-1]))
        self._wait(f"all of {', '.join(names)} run", lambda: self._all_run(names))
        self._map()

    def _look_inside(self) -> None:
        claim = self._observer.claim_of(SHARER)
        if claim is None:
            raise ClusterError(f"pod {SHARER} runs without a claim")
        uid = claim["metadata"]["uid"]
        self._say.heading(f"2  What the containers of {SHARER} get")
        self._say.say("The claim's status, written by the plugin:")
        self._wait("the claim's status names its devices", lambda: self._device_data() != "")
        self._say.block(self._device_data(), indent="    ")
        paths = [path for path in self._claim_specs() if uid in path.name]
        if len(paths) != 1:
            raise ClusterError(f"claim {uid} should have one CDI spec, has {len(paths)}")
        self._say.say("Its CDI spec, which a container runtime reads:")
        self._say.block(cdi_excerpt(yaml.safe_load(paths[0].read_text())), indent="    ")
        self._say.say("That of the driver's files, which all claims of the node get (excerpt):")
        for path in paths[0].parent.glob("*-driver.yaml"):
            self._say.block(cdi_excerpt(yaml.safe_load(path.read_text())), indent="    ")
        self._say.say("What a runtime makes of it; the pod's two containers share the slice:")
        views = self._container_views(SHARER)
        for view in views[:1]:
            self._say.block(container_excerpt(view), indent="    ")
        for view in views[1:]:
            self._say.line(f"    container {view['name']}: the same")
        if len(views) != 2 or views[0] | {"name": ""} != views[1] | {"name": ""}:  # noqa: PLR2004
            raise ClusterError(f"the two containers of {SHARER} do not see the same")
        if not any("/nvidia-caps/" in d["path"] for d in views[0]["devices"]):
            raise ClusterError(f"the containers of {SHARER} have no capability device of a slice")

    def _wait_and_leave(self) -> None:
        self._say.heading(f"3  {LATE} wants a whole GPU, and none is left")
        self._apply("3-late-pod.yaml")
        reason = ""

        def told() -> bool:
            nonlocal reason
            reason = self._observer.reason(LATE, _CONTROLLER)
            return bool(reason)

        self._wait(f"the controller says why {LATE} waits", told)
        if self._observer.phases().get(LATE) != "Pending":
            raise ClusterError(f"{LATE} should wait, but is {self._observer.phases().get(LATE)}")
        self._say.waits(f"  {LATE} waits. The controller says in an event:")
        self._say.say(reason, indent="    ")
        self._say.say(f"Now {LEAVER} is deleted:")
        self._delete(LEAVER)
        self._wait(f"{LATE} runs after {LEAVER} left", lambda: self._all_run([LATE]))
        self._map()

    def _clean_up(self) -> None:
        self._say.heading("4  Everything is deleted, and nothing may be left")
        for name in self._observer.phases():
            self._delete(name)
        for template in _manifest("1-templates.yaml"):
            name = template["metadata"]["name"]
            self._api.delete(RESOURCE_CLAIM_TEMPLATES, name, namespace=NAMESPACE)
        checks = {
            "no pod": lambda: not self._observer.phases(),
            "no claim": lambda: not self._observer.claims(),
            "no slice on the simulated GPUs": lambda: not self._hardware_slices(),
            "no CDI spec of a claim": lambda: not self._claim_specs(),
            "no slice in the MigNode objects": lambda: not self._published_slices(),
        }
        for what, holds in checks.items():
            self._wait(what, holds)
            self._say.good(what)

    def _wait(self, what: str, holds: Any) -> None:
        self._check()
        self._observer.wait(what, holds, seconds=_STEP_SECONDS)

    def _running(self, placement: Placement) -> None:
        self._slices += len(placement.devices)
        devices = ", ".join(placement.devices)
        self._say.line(
            f"    {placement.pod:<11} runs on {placement.node}  {devices:<24} "
            f"after {placement.seconds:.1f} s"
        )

    def _map(self) -> None:
        self._wait("the MigNode objects show every slice", self._map_is_complete)
        self._say.line()
        self._say.say("The GPUs as the MigNode objects show them, one column per memory slice:")
        for inventory in self._cluster.inventories():
            self._say.block(
                draw(inventory, owner=self._observer.owner, style=self._say.style), indent="    "
            )

    def _map_is_complete(self) -> bool:
        held = {claim["metadata"]["uid"] for claim in self._observer.claims()}
        return held == self._published_slices()

    def _published_slices(self) -> set[str]:
        """UIDs of the claims that MigNode objects show, "" for a slice without a claim."""
        return {
            instance.claim.uid if instance.claim else ""
            for inventory in self._cluster.inventories()
            for gpu in inventory.gpus
            for instance in gpu.instances
        }

    def _hardware_slices(self) -> int:
        machines = [place.machine for place in self._cluster.places]
        return sum(len(gpu.gpu_instances) for m in machines for gpu in m.state().gpus)

    def _claim_specs(self) -> list[Path]:
        specs = (place.cdi.glob("*-claim_*") for place in self._cluster.places)
        return [path for found in specs for path in sorted(found)]

    def _container_views(self, pod_name: str) -> list[dict[str, Any]]:
        pod = self._observer.pod(pod_name) or {"metadata": {"uid": "-"}}
        pattern = f"pods/{pod['metadata']['uid']}/containers/*.json"
        found = [p for place in self._cluster.places for p in sorted(place.kubelet.glob(pattern))]
        return [json.loads(path.read_text()) for path in found]

    def _device_data(self) -> str:
        return device_data(self._observer.claim_of(SHARER) or {})

    def _is_placed(self, pod: str) -> bool:
        claim = self._observer.claim_of(pod) or {}
        return bool(at(claim, "status", "allocation"))

    def _all_run(self, names: list[str]) -> bool:
        phases = self._observer.phases()
        return all(phases.get(name) == "Running" for name in names)

    def _apply(self, manifest: str) -> list[Obj]:
        return [self._create(body) for body in _manifest(manifest)]

    def _create(self, body: Obj) -> Obj:
        resource: Resource = _RESOURCES[body["kind"]]
        body["metadata"]["namespace"] = NAMESPACE
        return self._api.create(resource, body)

    def _delete(self, pod: str) -> None:
        try:
            self._api.delete(PODS, pod, namespace=NAMESPACE)
        except ObjectNotFoundError:
            return


def _manifest(name: str) -> Iterator[Obj]:
    text = (files("sim.cluster") / "manifests" / name).read_text()
    yield from yaml.safe_load_all(text)


def introduce(terminal: Terminal) -> None:
    """Says what is real here and what is not."""
    terminal.heading("MIG slices on demand: a tour on a simulated cluster")
    terminal.line()
    terminal.term(
        "real",
        "the allocation controller and the kubelet plugin, unmodified, each a process of its own; "
        "pynvml; the Kubernetes API over HTTP; kubelet's gRPC protocol; CDI specs",
    )
    terminal.term(
        "simulated",
        "the GPUs, at the C functions of NVML; the API server, kubelet and scheduler; no container "
        "runs: what a runtime would give it is computed from the CDI spec",
    )


def conclude(terminal: Terminal, slices: int, started: float) -> None:
    """Says how the tour went."""
    terminal.line()
    terminal.line(
        f"{slices} slices were made and removed in {time.monotonic() - started:.1f} s. "
        "To try it yourself: make up"
    )
