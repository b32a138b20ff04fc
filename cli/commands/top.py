"""``kubectl mig top``: who has how much of the GPUs, by namespace and by pod."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from datetime import datetime

from cli.facts import ClusterFacts, read_facts
from cli.output import CliError, Exit
from cli.session import Session
from cli.site import GpuView, Slot
from dra.allocator.quotas import Quotas
from dra.cel.kinds import Kinds
from dra.claims.classes import DEVICES, MEMORY
from dra.common.resources import MIG_NODES, at

_SHOWN = 20
"""Number of pods that are listed in text; JSON has all."""


@dataclass(frozen=True, slots=True)
class Use:
    """Devices of a pod or namespace.

    ``gpus``: number of GPUs, where a part of a GPU counts by its share of the memory. ``hours``:
    GPU hours since the devices were allocated.
    """

    namespace: str
    pod: str = ""
    devices: int = 0
    memory_mib: int = 0
    gpus: float = 0.0
    hours: float = 0.0

    def __add__(self, other: Use) -> Use:
        return replace(
            self,
            devices=self.devices + other.devices,
            memory_mib=self.memory_mib + other.memory_mib,
            gpus=self.gpus + other.gpus,
            hours=self.hours + other.hours,
        )


@dataclass(frozen=True, slots=True)
class _Held:
    """Devices of a class that a namespace holds, and the most that it may hold (None: any)."""

    namespace: str
    device_class: str
    devices: int
    most_devices: int | None
    memory_mib: int
    most_memory_mib: int | None

    @property
    def row(self) -> tuple[str, ...]:
        devices, memory = str(self.devices), _gib(self.memory_mib)
        if self.most_devices is not None:
            devices += f" of {self.most_devices}"
        if self.most_memory_mib is not None:
            memory += f" of {_gib(self.most_memory_mib)}"
        return self.namespace, self.device_class, devices, memory


def run(session: Session, *, all_namespaces: bool) -> int:
    """List the namespace's pods by the memory that they have, or all namespaces and pods."""
    namespace = "" if all_namespaces else session.namespace
    facts = read_facts(session, namespace)
    if str(MIG_NODES) in facts.unread:
        raise CliError(Exit.FORBIDDEN, f"not allowed to list {MIG_NODES}")
    held, quotas = [*_uses(facts, session.now(), namespace)], [*_quotas(facts, namespace)]
    pods = _together(held)
    spaces = _together(replace(use, pod="") for use in held)
    if session.out.is_json:
        found = {"namespaces": [*map(_json, spaces)], "pods": [*map(_json, pods)], "quotas": quotas}
        session.out.json("Use", found)
        return Exit.OK
    out = session.out
    if not pods:
        out.line("nobody has a device" if all_namespaces else f"no pod of {namespace} has a device")
    if pods and all_namespaces:
        out.table(("NAMESPACE", *_COLUMNS), [(u.namespace, *_row(u)) for u in spaces])
        out.line()
    if pods:
        rows = [(u.namespace, u.pod, *_row(u)) for u in pods[:_SHOWN]]
        out.table(("NAMESPACE", "POD", *_COLUMNS), rows)
    if len(pods) > _SHOWN:
        out.line(f"and {len(pods) - _SHOWN} more with less memory (-o json lists all)")
    if quotas:
        out.line()
        out.table(("NAMESPACE", "CLASS", "DEVICES", "MEMORY"), [each.row for each in quotas])
        out.line("what a namespace holds of a class, of what it may hold at a time")
    return Exit.OK


_COLUMNS = ("DEVICES", "MEMORY", "GPUS", "GPU HOURS")


def _row(use: Use) -> tuple[str, ...]:
    return str(use.devices), _gib(use.memory_mib), f"{use.gpus:.2f}", f"{use.hours:.1f}"


def _gib(mib: int) -> str:
    return f"{mib / 1024:.1f}Gi"


def _json(use: Use) -> dict[str, object]:
    names = {"memory_mib": "memoryMiB", "hours": "gpuHours"}
    found = {names.get(key, key): value for key, value in asdict(use).items()}
    return {key: value for key, value in found.items() if key != "pod" or value}


def _together(uses: Iterable[Use]) -> list[Use]:
    """Sum of the uses of each namespace and pod; those with most memory come first."""
    found: dict[tuple[str, str], Use] = {}
    for use in uses:
        key = (use.namespace, use.pod)
        found[key] = found[key] + use if key in found else use
    return sorted(found.values(), key=lambda u: (-u.memory_mib, -u.hours, u.namespace, u.pod))


def _quotas(facts: ClusterFacts, namespace: str) -> Iterator[_Held]:
    """Devices that namespaces hold of classes with a quota; 0 is told of ``namespace`` alone.

    As the controller counts them: with what nodes have of claims that are gone.
    """
    quotas = {c.name: c.quota for c in facts.classes.values() if c.quota and not c.quota.fault}
    counted = Quotas(facts.driver, Kinds())
    for name, quota in quotas.items():
        counted.limit(name, quota)
    gpus = {node.name: [view.gpu for view in node.gpus] for node in facts.site.nodes}
    allocated = set[str]()
    for known in facts.claims.values():
        if (allocation := known.claim.allocation) is not None:
            allocated.add(known.claim.ref.uid)
            counted.enter(known.claim.ref, allocation, gpus.get(allocation.node, ()))
    for node, on_node in gpus.items():
        counted.leave(node, on_node, allocated)
    sums: Counter[tuple[str, str, str]] = Counter()
    spaces = {(namespace, name) for name in quotas if namespace}
    for space, name, what, number in counted.sums():
        if namespace in ("", space):
            sums[space, name, what] = number
            spaces.add((space, name))
    for space, name in sorted(spaces):
        devices, memory = (sums[space, name, what] for what in (DEVICES, MEMORY))
        most = quotas[name]
        yield _Held(space, name, devices, most.devices, memory, most.memory_mib)


def _uses(facts: ClusterFacts, now: datetime, namespace: str) -> Iterable[Use]:
    """Use of each device that a claim has; only claims of ``namespace``, if it is given."""
    since = {
        known.claim.ref.uid: at(
            known.obj, "status", "allocation", "allocationTimestamp", default=""
        )
        for known in facts.claims.values()
    }
    for view in facts.site.gpus:
        for slot in view.slots:
            claim = slot.claim
            if claim is None or (namespace and claim.namespace != namespace):
                continue
            memory = _memory(slot, view)
            part = memory / view.gpu.memory_mib if view.gpu.memory_mib else 0.0
            if slot.placement is not None and slot.share is None and view.gpu.geometry is not None:
                part = slot.placement.size / view.gpu.geometry.memory_slices
            began = since.get(claim.uid)
            hours = (now - datetime.fromisoformat(began)).total_seconds() / 3600 if began else 0.0
            name = ", ".join(slot.pods) or f"(claim {claim.name})"
            yield Use(claim.namespace, name, 1, memory, part, part * max(0.0, hours))


def _memory(slot: Slot, view: GpuView) -> int:
    if slot.share is not None:
        return slot.share.memory_mib
    geometry, number = view.gpu.geometry, slot.profile_id
    profile = geometry.by_id(number) if geometry is not None and number is not None else None
    return profile.memory_mib if profile is not None else view.gpu.memory_mib
