"""Content of the page, kept up to date by changes of mirrored objects. Pure."""

from __future__ import annotations

import secrets
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from cli.drawing import lack, room_of, rooms_of, words_of
from cli.output import harmless
from cli.site import GpuView, NodeView, Slot, silence_of, survey
from dra.claims.claims import read_claim
from dra.claims.conditions import claims_allocated
from dra.common.resources import (
    EVENTS,
    MIG_NODES,
    PODS,
    RESOURCE_CLAIMS,
    Obj,
    ObjectKey,
    Resource,
    at,
)
from dra.gpu.inventory import HARMFUL
from dra.kube.reflector import Change

_REFRESH_SECONDS, _BACKLOG_SECONDS = 1.0, 0.05
"""Seconds between refreshes, and after one that left some of its work undone."""
_WORK_SECONDS = 0.5
"""Seconds that a refresh may take: some 300 nodes of eight GPUs full of slices."""
_WAITING, _WAITING_OF_ONE = 500, 50
_TOLD, _TOLD_OF_ONE = 300, 50
"""Waiting pods and events that are shown, in all and of one namespace."""
_REASONS = 20
"""Reasons for waiting that are counted, the most frequent."""
_TEXT, _NAME = 400, 253
"""Characters that are shown of a text and of a name."""

_SILENT = "its plugin is silent, and what is shown may be old"

Json = dict[str, Any]


def said(text: Any, length: int = _TEXT) -> str:
    """A text that others wrote, cut, on one line, without characters that change other text."""
    found = str(text or "")
    cut = found if len(found) <= length else f"{found[: length - 1]}…"
    return harmless(cut, newlines=True)


@dataclass(slots=True)
class _Ledger:
    """Pods that wait, or events, as the page shows them, by namespace and name.

    ``most`` and ``most_of_one``: entries that are shown in all, and of one namespace. ``number``:
    number of the change of content in which an entry changed last.
    """

    most: int
    most_of_one: int
    entries: dict[str, dict[str, Json]] = field(default_factory=dict)
    number: int = 0

    def set(self, key: ObjectKey, entry: Json | None, number: int) -> None:
        known = self.entries.get(key[0], {})
        if known.get(key[1]) == entry:
            return
        self.number = number
        if entry is not None:
            self.entries.setdefault(key[0], known)[key[1]] = entry
        else:
            del known[key[1]]
            if not known:
                del self.entries[key[0]]

    def shown(self, *, newest: bool) -> Json:
        """Entries in order of time, by namespace the number of those left out, by reason of all.

        All namespaces get an equal part.
        """
        part = max(1, min(self.most_of_one, self.most // max(1, len(self.entries))))
        items, more, reasons = list[Json](), dict[str, int](), Counter[str]()
        for namespace, entries in self.entries.items():
            reasons.update(entry["reason"] for entry in entries.values())
            ordered = sorted(entries.values(), key=_time, reverse=newest)
            items += ordered[:part]
            if len(ordered) > part:
                more[namespace] = len(ordered) - part
        items.sort(key=_time, reverse=newest)
        if len(items) > self.most:
            more["others"] = len(items) - self.most
        return {
            "items": items[: self.most],
            "more": dict([*more.items()][: self.most]),
            "reasons": reasons.most_common(_REASONS),
        }


def _time(entry: Json) -> str:
    return str(entry["at"])


class Content:
    """Content of the page. Thread-safe.

    ``now`` gives monotonic seconds, ``wall`` the time of day, by which plugins count as silent.

    What a node shows is worked out anew after its MigNode or a claim there has changed: at most
    once a second, and in short steps, so that the page is answered in between.
    """

    def __init__(
        self, driver: str, now: Callable[[], float], *, wall: Callable[[], datetime]
    ) -> None:
        self._driver, self._now, self._wall = driver, now, wall
        self._lock = threading.Lock()
        self._epoch = secrets.token_hex(4)
        self._number = 1
        self._mignodes: dict[str, Obj] = {}
        self._claims: dict[str, dict[ObjectKey, Obj]] = {}
        self._node_of: dict[ObjectKey, str] = {}
        self._changed: dict[str, None] = {}
        self._nodes: dict[str, tuple[int, Json]] = {}
        self._removed = 0
        self._refresh_at = float("-inf")
        self._waiting = _Ledger(_WAITING, _WAITING_OF_ONE)
        self._told = _Ledger(_TOLD, _TOLD_OF_ONE)

    def take(self, resource: Resource, change: Change) -> None:
        """Take a change of an object of one of the kinds that are shown."""
        obj = change.new or change.old or {}
        key = (obj["metadata"].get("namespace", ""), obj["metadata"]["name"])
        with self._lock:
            self._number += 1
            if resource == MIG_NODES:
                self._mignodes.pop(key[1], None)
                if change.new is not None:
                    self._mignodes[key[1]] = change.new
                self._changed[key[1]] = None
            elif resource == RESOURCE_CLAIMS:
                self._take_claim(key, change.new)
            elif resource == PODS:
                entry = _waiting(change.new, self._driver) if change.new is not None else None
                self._waiting.set(key, entry, self._number)
            elif resource == EVENTS:
                entry = _event(change.new) if change.new is not None else None
                self._told.set(key, entry, self._number)

    def _take_claim(self, key: ObjectKey, claim: Obj | None) -> None:
        before = self._node_of.pop(key, "")
        if before:
            del self._claims[before][key]
            self._changed[before] = None
        node = _node_of(claim, self._driver) if claim is not None else ""
        if claim is not None and node:
            self._node_of[key] = node
            self._claims.setdefault(node, {})[key] = claim
            self._changed[node] = None

    def since(self, version: str) -> Json:
        """Changes since ``version``, that of an earlier answer; everything if it is of another run.

        In the answer, ``full``: it has everything. ``backlog``: number of nodes that are still to
        be worked out. ``names``: those of all nodes, given where a node is gone. ``waiting`` and
        ``told``: given if they changed.
        """
        known, _, number = version.rpartition(".")
        with self._lock:
            self._refresh()
            full = known != self._epoch or not number.isdecimal() or int(number) > self._number
            since = 0 if full else int(number)
            answer: Json = {"version": f"{self._epoch}.{self._number}", "full": full}
            answer["backlog"] = len(self._changed)
            answer["nodes"] = [n for at, n in self._nodes.values() if at > since]
            if self._removed > since and not full:
                answer["names"] = [*self._nodes]
            if self._waiting.number > since or full:
                answer["waiting"] = self._waiting.shown(newest=False)
            if self._told.number > since or full:
                answer["told"] = self._told.shown(newest=True)
        return answer

    def _refresh(self) -> None:
        now = self._now()
        if now < self._refresh_at:
            return
        self._changed |= dict.fromkeys(self._silenced())
        self._refresh_at = now + _REFRESH_SECONDS
        if not self._changed:
            return
        self._number += 1
        while self._changed and self._now() <= now + _WORK_SECONDS:
            name = next(iter(self._changed))
            del self._changed[name]
            obj = self._mignodes.get(name)
            if obj is not None:
                made = self._node(name, obj)
                if name not in self._nodes or self._nodes[name][1] != made:
                    self._nodes[name] = self._number, made
            elif self._nodes.pop(name, None) is not None:
                self._removed = self._number
        pause = _BACKLOG_SECONDS if self._changed else _REFRESH_SECONDS
        self._refresh_at = self._now() + pause

    def _silenced(self) -> list[str]:
        """Nodes whose plugin counts as silent since they were worked out."""
        now, alive = self._wall(), [n for n, (_, m) in self._nodes.items() if not m["silentSince"]]
        return [n for n in alive if n in self._mignodes and silence_of(self._mignodes[n], now)]

    def _node(self, name: str, obj: Obj) -> Json:
        claims, now = self._claims.get(name, {}).values(), self._wall()
        site = survey([obj], map(read_claim, claims), driver=self._driver, now=now)
        silent = said(obj["status"]["lastHeartbeatTime"], _NAME) if silence_of(obj, now) else ""
        if problem := site.unreadable.get(name):
            note = said(f"its MigNode cannot be read: {problem}")
            made: Json = {"name": said(name, _NAME), "ready": False, "note": note, "gpus": []}
            made |= {"memory": 0, "free": 0, "rooms": []}
        else:
            made = _node_json(site.nodes[0])
        if silent:
            made |= {"ready": False, "note": _SILENT}
        return {**made, "silentSince": silent}


def _node_of(claim: Obj, driver: str) -> str:
    """The node of a claim with a device of ours; empty for other claims."""
    allocation = read_claim(claim).allocation
    return allocation.node if allocation is not None and allocation.of_driver(driver) else ""


def _waiting(pod: Obj, driver: str) -> Json | None:
    """The entry of a pod that waits, by the controller's condition; None for other pods."""
    for condition in at(pod, "status", "conditions"):
        if condition["type"] == claims_allocated(driver) and condition["status"] == "False":
            return {
                **_named(pod["metadata"]),
                "reason": said(condition.get("reason"), _NAME),
                "message": said(condition.get("message")),
                "at": said(condition.get("lastTransitionTime"), _NAME),
            }
    return None


def _event(event: Obj) -> Json:
    about = at(event, "involvedObject", default={})
    when = at(event, "series", "lastObservedTime") or event.get("lastTimestamp")
    return {
        "namespace": said(event["metadata"].get("namespace"), _NAME),
        "about": said(f"{about.get('kind', '')} {about.get('name', '')}", _NAME),
        "reason": said(event.get("reason"), _NAME),
        "message": said(event.get("message")),
        "warning": event.get("type") == "Warning",
        "at": said(when or event.get("eventTime"), _NAME),
        "id": said(event["metadata"]["name"], _NAME),
    }


def _named(metadata: Mapping[str, Any]) -> Json:
    return {field: said(metadata.get(field), _NAME) for field in ("namespace", "name")}


def _node_json(node: NodeView) -> Json:
    inventory = node.inventory
    note = next(iter(node.faults), "")
    if not note and inventory.allocator != "controller":
        note = f"allocated by kube-{inventory.allocator.value}"
    return {
        "name": said(node.name, _NAME),
        "ready": inventory.ready,
        "note": said(note),
        "gpus": [_gpu_json(view) for view in node.gpus],
        "memory": sum(v.gpu.memory_mib for v in node.gpus),
        "free": sum(v.free_mib for v in node.gpus if not v.blocked),
        "rooms": [
            [name, r.rank, r.free, len(r.nodes), r.most, r.lacks]
            for name, r in rooms_of(node.gpus).items()
        ],
    }


def _gpu_json(view: GpuView) -> Json:
    gpu = view.gpu
    words = words_of(view)
    largest, free = room_of(view)
    fault = gpu.unavailable if gpu.reason in HARMFUL else ""
    return {
        "name": said(gpu.name, _NAME),
        "product": said(gpu.product_name.removeprefix("NVIDIA "), _NAME),
        "slices": gpu.geometry.memory_slices if gpu.geometry is not None else 0,
        "blocked": said(view.blocked),
        "fault": said(fault),
        "words": said(words) if not view.slots else "",
        "largest": largest,
        "free": free,
        "lack": _lack(view) if largest == "none" else "",
        "slots": _slots_json((*view.slots, *view.ready), fault),
    }


def _lack(view: GpuView) -> str:
    """Reason why not even the smallest slice fits, although there is free memory."""
    geometry, usage = view.gpu.geometry, view.usage
    placed = [p for p in geometry.profiles if p.placements] if geometry and view.open else []
    if geometry is None or not placed:
        return ""
    smallest = min(placed, key=lambda p: p.rank)
    what = lack(geometry, usage, smallest)
    if what in {"", "memory", "place"}:
        return f"no place for a {smallest.name}"
    field = what.replace(" ", "_")
    total = getattr(geometry.totals, field)
    return f"{total - getattr(usage.counts, field) or 'none'} of {total} {what} left"


def _slots_json(slots: Iterable[Slot], fault: str) -> list[Json]:
    """An entry for each placement; slots that share a slice or GPU are one with several owners.

    ``fault``: of the GPU, which harms all that is on it.
    """
    found: dict[tuple[int, int], Json] = {}
    for slot in slots:
        place = (slot.placement.start, slot.placement.size) if slot.placement else (0, 0)
        entry = found.get(place)
        if entry is None:
            entry = found[place] = {
                "at": place[0],
                "size": place[1],
                "profile": said(slot.profile, _NAME),
                "state": slot.state,
                "note": said(slot.unhealthy or slot.message or fault),
                "owners": [],
            }
        if slot.claim is not None:
            names = (slot.claim.namespace, ", ".join(slot.pods[:4]), slot.claim.name)
            entry["owners"].append([said(name, _NAME) for name in names])
    return [*found.values()]
