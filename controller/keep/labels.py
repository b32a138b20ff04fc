"""Labels of nodes that describe their GPUs, kept where GPU feature discovery does not run.

Names and values are those of NVIDIA's GPU feature discovery (``internal/lm``: ``nvml.go``,
``resource.go``; strategy mixed), with one difference: slices are made for claims, so
``nvidia.com/mig-<profile>.count`` is the number that the node could hold if its GPUs were empty,
and does not change with what runs.

A node where GPU feature discovery runs has its label ``nvidia.com/gfd.timestamp``. There the
controller keeps only the label with the state of a layout, which GPU feature discovery does not
write. On other nodes, labels that other field managers own stay theirs, as server-side apply is
used without force. Labels are written only when the wanted ones change, so that whoever overwrites
them later wins.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Iterator, Mapping

from controller.cluster.records import Effects
from controller.serve.world import World
from controller.write.in_flight import KeptObjects
from dra.claims.classes import MOST_OF_NODE
from dra.common.resources import Obj
from dra.gpu.geometry import Geometry, Profile
from dra.gpu.inventory import Gpu, Inventory
from dra.gpu.names import extended_resource_name
from dra.kube.errors import ConflictError

DISCOVERED = "nvidia.com/gfd.timestamp"
"""A label that only GPU feature discovery writes."""

MODE_STATE = "nvidia.com/mig.config.state"
"""The label in which mig-manager says how far a node with a layout is."""

_FORBIDDEN = re.compile(r"[^A-Za-z0-9._-]+")
_LONGEST = 63


def node_labels(inventory: Inventory) -> dict[str, str]:
    """The labels of the node; none if it has no GPU.

    If its GPUs are of several products, the most frequent one gives product, memory and family.
    """
    if not inventory.gpus:
        return {}
    capable = any(gpu.geometry is not None for gpu in inventory.gpus)
    found = {"nvidia.com/mig.capable": str(capable).lower(), **_versions(inventory)}
    if capable:
        found["nvidia.com/mig.strategy"] = "mixed"
    counts = Counter(gpu.product_name for gpu in inventory.gpus)
    product = min(counts, key=lambda name: (-counts[name], name))
    found.update(_of_gpu(next(g for g in inventory.gpus if g.product_name == product)))
    found["nvidia.com/gpu.count"] = str(len(inventory.gpus))
    found.update(_of_profiles(inventory))
    return {key: value for key, value in found.items() if value}


def state_labels(inventory: Inventory) -> dict[str, str]:
    """The label with the state of a node's layout: pending, success or failed; {} without one."""
    mode = inventory.mode
    return {} if mode is None or not mode.layout else {MODE_STATE: mode.state}


def _versions(inventory: Inventory) -> dict[str, str]:
    driver, cuda = inventory.driver_version, inventory.cuda_driver_version
    parts = [*driver.split("."), "", ""]
    major, minor = (*cuda.split("."), "")[:2]
    return {
        "nvidia.com/cuda.driver-version.full": _value(driver),
        "nvidia.com/cuda.driver-version.major": _value(parts[0]),
        "nvidia.com/cuda.driver-version.minor": _value(parts[1]),
        "nvidia.com/cuda.driver-version.revision": _value(parts[2]),
        "nvidia.com/cuda.runtime-version.full": _value(cuda),
        "nvidia.com/cuda.runtime-version.major": _value(major),
        "nvidia.com/cuda.runtime-version.minor": _value(minor),
    }


def _of_gpu(gpu: Gpu) -> dict[str, str]:
    major, _, minor = gpu.cuda_compute_capability.partition(".")
    return {
        "nvidia.com/gpu.product": _value(gpu.product_name),
        "nvidia.com/gpu.memory": str(gpu.memory_mib) if gpu.memory_mib else "",
        "nvidia.com/gpu.family": _value(gpu.architecture.lower()),
        "nvidia.com/gpu.compute.major": _value(major),
        "nvidia.com/gpu.compute.minor": _value(minor),
    }


def _of_profiles(inventory: Inventory) -> dict[str, str]:
    found: dict[str, str] = {}
    counts: Counter[str] = Counter()
    for gpu, geometry, profile in _offers(inventory):
        prefix = extended_resource_name(profile.name)
        if prefix not in counts and len(counts) >= MOST_OF_NODE:
            continue  # such a profile has no class either
        counts[prefix] += geometry.most([profile])
        if f"{prefix}.count" not in found:
            found |= {f"{prefix}.{key}": value for key, value in _of_profile(gpu, profile).items()}
        found[f"{prefix}.count"] = str(counts[prefix])
    return found


def _offers(inventory: Inventory) -> Iterator[tuple[Gpu, Geometry, Profile]]:
    for gpu in inventory.gpus:
        if gpu.mig_enabled and gpu.geometry is not None:
            for profile in gpu.geometry.profiles if gpu.layout is None else _declared(gpu.geometry):
                yield gpu, gpu.geometry, profile


def _declared(geometry: Geometry) -> Iterator[Profile]:
    """The profiles that a GPU's layout declares: those that have placements."""
    return (profile for profile in geometry.profiles if profile.placements)


def _of_profile(gpu: Gpu, profile: Profile) -> dict[str, str]:
    engines = profile.engines
    return {
        "product": _value(f"{gpu.product_name}-MIG-{profile.name}"),
        "memory": str(profile.memory_mib),
        "multiprocessors": str(profile.multiprocessors),
        "slices.gi": str(profile.compute_slices),
        "slices.ci": str(profile.compute_slices),
        "engines.copy": str(engines.copy_engines),
        "engines.decoder": str(engines.decoders),
        "engines.encoder": str(engines.encoders),
        "engines.jpeg": str(engines.jpeg_engines),
        "engines.ofa": str(engines.ofa_engines),
    }


def _value(text: str) -> str:
    """``text`` as the value of a label, with hyphens for spaces as in GPU feature discovery."""
    return _FORBIDDEN.sub("-", text)[:_LONGEST].strip("._-")


_log = logging.getLogger(__name__)

_FIELD = ".metadata.labels."


class NodeLabels:
    """Writes the labels of one node at a time."""

    def __init__(self, world: World) -> None:
        self._cluster = world.cluster
        self._requests = world.requests
        self._objects: KeptObjects[str] = KeptObjects(
            "labels of a node", world.in_flight, world.now
        )
        self._mark = f"{world.cluster.driver}/labels"
        self._applied: dict[str, dict[str, str]] = {}

    @property
    def due(self) -> float:
        return self._objects.due

    def note(self, effects: Effects) -> None:
        for node in sorted(effects.changed_nodes):
            self._objects.add(node)

    def work(self) -> None:
        node = self._objects.next()
        if node is None:
            return
        facts = self._cluster.hosts.facts.get(node)
        if facts is None:
            self._applied.pop(node, None)
            self._objects.discard(node)
            return
        applied, wanted = self._applied.get(node), self._wanted(node, facts.labels)
        was_written = wanted or self._mark in facts.labels or applied
        if applied != wanted and was_written:
            self._apply(node, wanted)

    def _wanted(self, node: str, labels: Mapping[str, str]) -> dict[str, str]:
        inventory = self._cluster.inventory(node)
        if inventory is None:
            return {}
        found = {} if DISCOVERED in labels else node_labels(inventory)
        found |= state_labels(inventory)
        return {**found, self._mark: ""} if found else {}

    def _apply(self, node: str, wanted: dict[str, str]) -> None:
        def job() -> Iterator[Obj]:
            try:
                yield self._requests.apply_node_labels(node, wanted)
            except ConflictError as error:
                theirs = _owned_by_others(error)
                left = {key: value for key, value in wanted.items() if key not in theirs}
                fields = {"node": node, "labels": ", ".join(sorted(theirs))}
                _log.warning("labels of a node belong to others and stay theirs", extra=fields)
                yield self._requests.apply_node_labels(node, left)

        def done(_: Obj) -> None:
            self._applied[node] = wanted

        self._objects.write(node, job, done)


def _owned_by_others(error: ConflictError) -> set[str]:
    """Keys that other field managers own, by the answer to an apply without force."""
    causes = error.details.get("causes") or ()
    fields = (str(cause.get("field") or "") for cause in causes)
    return {field.removeprefix(_FIELD) for field in fields if field.startswith(_FIELD)}
