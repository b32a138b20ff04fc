"""``python -m sim demo``: the story that ``make demo`` tells, and the manifests that it applies."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from dra.claims.claims import claim_names
from dra.common.resources import (
    EVENTS,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    Obj,
    Resource,
    at,
)
from dra.gpu.inventory import ClaimRef
from dra.gpu.names import DEFAULT_DRIVER
from dra.gpu.placement_map import draw
from dra.kube.errors import ObjectNotFoundError
from sim.cluster.cluster import Cluster, wait_until
from sim.cluster.terminal import Terminal
from sim.processes import ClusterError

NAMESPACE = "default"
LATE, LEAVER, SHARER = "solver-c", "solver-a", "server-a"
_CONTROLLER = f"{DEFAULT_DRIVER}/controller"
_RESOURCES = {"Pod": PODS, "ResourceClaimTemplate": RESOURCE_CLAIM_TEMPLATES}
_STEP_SECONDS = 120.0
_SHOWN_MOUNTS = 2


class Tour:
    """Shows a fresh cluster at work, and checks every claim that it makes about it."""

    def __init__(self, cluster: Cluster, terminal: Terminal) -> None:
        self._cluster = cluster
        self._api = cluster.api
        self._say = terminal
        self._made: dict[str, float] = {}
        self._shown: set[str] = set()
        self._slices = 0

    def run(self) -> int:
        """Takes the whole tour; returns how many slices were cut.

        Raises:
            ClusterError: something is not as the tour says.
        """
        self._fill()
        self._look_inside()
        self._wait_and_leave()
        self._clean_up()
        return self._slices

    def wait(self, what: str, holds: Callable[[], bool]) -> None:
        """Waits until ``holds``, and tells meanwhile of each pod that runs.

        Raises:
            ClusterError: time is up or a process ended.
        """

        def missing() -> str:
            for name, phase in self._phases().items():
                if phase == "Running" and name not in self._shown:
                    self._show(name)
            return "" if holds() else ", ".join(f"{n} is {p}" for n, p in self._phases().items())

        wait_until(self._cluster.supervisor, what, missing, seconds=_STEP_SECONDS)

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
            self.wait(f"a place for {names[-1]}", lambda: self._is_placed(names[-1]))
        self.wait(f"{', '.join(names)} to run", lambda: self._all_run(names))
        self._map()

    def _look_inside(self) -> None:
        self._say.heading(f"2  What the containers of {SHARER} get")
        self._say.say("The claim's status, written by the plugin:")
        self.wait("its devices", lambda: device_data(self._claim_of(SHARER)) != "")
        self._say.block(device_data(self._claim_of(SHARER)), indent="    ")
        self._say.say(
            "What a runtime makes of its CDI spec; the pod's two containers share the slice:"
        )
        first, *others = self._container_views(SHARER)
        self._say.block(container_excerpt(first), indent="    ")
        for view in others:
            self._say.line(f"    container {view['name']}: the same")
        if len(others) != 1 or first | {"name": ""} != others[0] | {"name": ""}:
            raise ClusterError(f"the two containers of {SHARER} do not see the same")
        if not any("/nvidia-caps/" in d["path"] for d in first["devices"]):
            raise ClusterError(f"the containers of {SHARER} have no capability device of a slice")

    def _wait_and_leave(self) -> None:
        self._say.heading(f"3  {LATE} wants a whole GPU, and none is left")
        self._apply("3-late-pod.yaml")
        self.wait(f"the controller to say why {LATE} waits", lambda: self._reason(LATE) != "")
        if self._phases().get(LATE) != "Pending":
            raise ClusterError(f"{LATE} should wait, but is {self._phases().get(LATE)}")
        self._say.waits(f"  {LATE} waits. The controller says in an event:")
        self._say.say(self._reason(LATE), indent="    ")
        self._say.say(f"Now {LEAVER} is deleted:")
        self._delete(LEAVER)
        self.wait(f"{LATE} to run after {LEAVER} left", lambda: self._all_run([LATE]))
        self._map()

    def _clean_up(self) -> None:
        self._say.heading("4  Everything is deleted, and nothing may be left")
        for name in self._phases():
            self._delete(name)
        for template in _manifest("1-templates.yaml"):
            name = template["metadata"]["name"]
            self._api.delete(RESOURCE_CLAIM_TEMPLATES, name, namespace=NAMESPACE)
        checks: dict[str, Callable[[], bool]] = {
            "no pod": lambda: not self._phases(),
            "no claim": lambda: not self._claims(),
            "no slice on the simulated GPUs": lambda: not self._hardware_slices(),
            "no CDI spec of a claim": lambda: not self._claim_specs(),
            "no slice in the MigNode objects": lambda: not self._published_slices(),
        }
        for what, holds in checks.items():
            self.wait(what, holds)
            self._say.good(what)

    # -- the cluster, as it is now

    def _pods(self) -> list[Obj]:
        return self._api.list(PODS, namespace=NAMESPACE).items

    def _claims(self) -> list[Obj]:
        return self._api.list(RESOURCE_CLAIMS, namespace=NAMESPACE).items

    def _phases(self) -> dict[str, str]:
        return {p["metadata"]["name"]: at(p, "status", "phase", default="") for p in self._pods()}

    def _all_run(self, names: list[str]) -> bool:
        phases = self._phases()
        return all(phases.get(name) == "Running" for name in names)

    def _claim_of(self, pod: str) -> Obj:
        """The claim of a pod, with nothing in it while there is none."""
        names = {n for p in self._pods() if p["metadata"]["name"] == pod for n in _claims_in(p)}
        return next((c for c in self._claims() if c["metadata"]["name"] in names), {})

    def _is_placed(self, pod: str) -> bool:
        return bool(at(self._claim_of(pod), "status", "allocation"))

    def _reason(self, pod: str) -> str:
        """Last warning of the controller about a pod or its claim."""
        names = {pod, at(self._claim_of(pod), "metadata", "name", default="")}
        found = [
            event
            for event in self._api.list(EVENTS, namespace=NAMESPACE).items
            if event["involvedObject"].get("name") in names
            and at(event, "source", "component") == _CONTROLLER
            and event.get("type") == "Warning"
        ]
        found.sort(key=lambda e: (e.get("lastTimestamp") or "", e["involvedObject"]["kind"]))
        return str(found[-1]["message"]) if found else ""

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

    def _container_views(self, pod: str) -> list[dict[str, Any]]:
        uids = [p["metadata"]["uid"] for p in self._pods() if p["metadata"]["name"] == pod]
        folders = [place.kubelet / "pods" / u for place in self._cluster.places for u in uids]
        found = (path for folder in folders for path in sorted(folder.glob("containers/*.json")))
        return [json.loads(path.read_text()) for path in found]

    # -- telling of it, and changing it

    def _show(self, name: str) -> None:
        self._shown.add(name)
        allocation = at(self._claim_of(name), "status", "allocation", default={})
        devices = [result["device"] for result in at(allocation, "devices", "results")]
        node = next(p["spec"]["nodeName"] for p in self._pods() if p["metadata"]["name"] == name)
        self._slices += len(devices)
        self._say.line(
            f"    {name:<11} runs on {node}  {', '.join(devices):<24} "
            f"after {time.monotonic() - self._made[name]:.1f} s"
        )

    def _map(self) -> None:
        self.wait(
            "the MigNode objects to show every slice",
            lambda: {c["metadata"]["uid"] for c in self._claims()} == self._published_slices(),
        )
        self._say.line()
        self._say.say("The GPUs as the MigNode objects show them, one column per memory slice:")
        for inventory in self._cluster.inventories():
            drawn = draw(inventory, owner=self._owner, style=self._say.style)
            self._say.block(drawn, indent="    ")

    def _owner(self, ref: ClaimRef) -> str:
        """The pods that use a claim, for the map."""
        found = (c for c in self._claims() if c["metadata"]["uid"] == ref.uid)
        users = at(next(found, {}), "status", "reservedFor")
        return ", ".join(user["name"] for user in users) or ref.name

    def _apply(self, manifest: str) -> None:
        for body in _manifest(manifest):
            self._create(body)

    def _create(self, body: Obj) -> None:
        resource: Resource = _RESOURCES[body["kind"]]
        body["metadata"]["namespace"] = NAMESPACE
        self._api.create(resource, body)
        self._made[body["metadata"]["name"]] = time.monotonic()

    def _delete(self, pod: str) -> None:
        try:
            self._api.delete(PODS, pod, namespace=NAMESPACE)
        except ObjectNotFoundError:
            return


def _claims_in(pod: Obj) -> Iterable[str]:
    return filter(None, claim_names(pod).values())


def _manifest(name: str) -> Iterator[Obj]:
    text = (files("sim.cluster") / "manifests" / name).read_text()
    yield from yaml.safe_load_all(text)


def container_excerpt(view: Mapping[str, Any]) -> str:
    """View of a container in few lines; ``view`` is the kubelet stand-in's file."""
    lines = [f"container {view['name']}"]
    lines += [f"  env    {name}={value}" for name, value in view["env"].items()]
    lines += [
        f"  device {d['path']:<34} {d['type']} {d['major']}:{d['minor']}" for d in view["devices"]
    ]
    lines += [f"  mount  {m['containerPath']}" for m in view["mounts"][:_SHOWN_MOUNTS]]
    if more := len(view["mounts"]) - _SHOWN_MOUNTS:
        lines.append(f"  mount  ... and {more} more files of the driver")
    return "\n".join(lines)


def device_data(claim: Mapping[str, Any]) -> str:
    """``status.devices`` of a claim: each device with its condition and its data."""
    lines = []
    for device in at(claim, "status", "devices"):
        conditions = ", ".join(
            f"{c['type']}={c['status']} ({c.get('reason', '')})"
            for c in device.get("conditions", ())
        )
        lines.append(f"{device['pool']}/{device['device']}: {conditions}")
        for name, value in (device.get("data") or {}).items():
            lines.append(f"  {name}: {value if isinstance(value, str) else json.dumps(value)}")
    return "\n".join(lines)


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
