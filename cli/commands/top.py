"""``kubectl mig top``: who has how much of the GPUs, by namespace and by pod."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from datetime import datetime

from cli.exits import CliError, Exit
from cli.facts import ClusterFacts, read_facts
from cli.session import Session
from cli.site import GpuView, Slot
from dra.common.resources import MIG_NODES, at

_SHOWN = 20
"""Pods that are listed beside all namespaces; JSON has all."""


@dataclass(frozen=True, slots=True)
class Use:
    """Devices of a pod or namespace. ``gpus`` counts parts of GPUs by their share of the memory.

    ``hours`` are such GPUs times the hours since their allocation.
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


def run(session: Session, *, all_namespaces: bool) -> int:
    """List the namespace's pods by the memory that they have, or all namespaces and pods."""
    namespace = "" if all_namespaces else session.namespace
    facts = read_facts(session, namespace)
    if str(MIG_NODES) in facts.unread:
        raise CliError(Exit.FORBIDDEN, f"not allowed to list {MIG_NODES}")
    held = [*_uses(facts, session.now(), namespace)]
    pods = _together(held)
    spaces = _together(replace(use, pod="") for use in held)
    if session.out.is_json:
        content = {"namespaces": [_json(u) for u in spaces], "pods": [_json(u) for u in pods]}
        session.out.json("Use", content)
        return Exit.OK
    out = session.out
    if not pods:
        out.line("nobody has a device" if all_namespaces else f"no pod of {namespace} has a device")
        return Exit.OK
    if all_namespaces:
        out.table(("NAMESPACE", *_COLUMNS), [(u.namespace, *_row(u)) for u in spaces])
        out.line()
    rows = [(u.namespace, u.pod, *_row(u)) for u in pods[:_SHOWN]]
    out.table(("NAMESPACE", "POD", *_COLUMNS), rows)
    if len(pods) > _SHOWN:
        out.line(f"and {len(pods) - _SHOWN} more with less memory (-o json lists all)")
    return Exit.OK


_COLUMNS = ("DEVICES", "MEMORY", "GPUS", "GPU HOURS")


def _row(use: Use) -> tuple[str, ...]:
    memory = f"{use.memory_mib / 1024:.1f}Gi"
    return str(use.devices), memory, f"{use.gpus:.2f}", f"{use.hours:.1f}"


def _json(use: Use) -> dict[str, object]:
    names = {"memory_mib": "memoryMiB", "hours": "gpuHours"}
    found = {names.get(key, key): value for key, value in asdict(use).items()}
    return {key: value for key, value in found.items() if key != "pod" or value}


def _together(uses: Iterable[Use]) -> list[Use]:
    """The sum for each namespace and pod, those with most memory first."""
    found: dict[tuple[str, str], Use] = {}
    for use in uses:
        key = (use.namespace, use.pod)
        found[key] = found[key] + use if key in found else use
    return sorted(found.values(), key=lambda u: (-u.memory_mib, -u.hours, u.namespace, u.pod))


def _uses(facts: ClusterFacts, now: datetime, namespace: str) -> Iterable[Use]:
    """A use for each device that a claim has; only those of ``namespace``, if it is one."""
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
