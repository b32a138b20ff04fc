"""Claims that never move, and claims that look like another's: what they cost everybody else."""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass

from dra.claims.claims import SCHEDULER_FINALIZER
from dra.common.resources import PODS, RESOURCE_CLAIMS, Obj
from dra.gpu.names import class_name
from hack.bench.control import objects
from hack.bench.hostile.ground import LARGE, SMALL, Ground, each, seconds_until

LIMIT = 60.0
_SMALL_A_GPU = 7
_LIVES_SECONDS = 1.0
_BASELINE_SECONDS = 20.0
_WATCHED_SECONDS = 100.0
_FINALIZER_SECONDS = 20.0


def held_for_ever(ground: Ground, _: object) -> str:
    """A node of two GPUs, its first slice never given back, and pods that want all of it.

    Pods of a small slice come and go all the time. One pod wants both GPUs, which it cannot have,
    and one that is younger wants one of them.
    """
    rest = sum(_SMALL_A_GPU for node in ground.nodes for _ in node.gpus) - 1
    stream = _Stream(ground, outstanding=rest + 6)
    alone = stream.run(rest, seconds=_BASELINE_SECONDS)
    ground.ask("both", {"name": "r", "exactly": _exactly(LARGE, count=2)})
    ground.ask("one", {"name": "r", "exactly": _exactly(LARGE)})
    served, began = stream.served, time.monotonic()
    idle = stream.run(rest, seconds=_WATCHED_SECONDS, until="one")
    overtaken, waited = stream.served - served, time.monotonic() - began
    found = f"in {waited:.0f} s, overtaken {overtaken} times"
    if not ground.is_allocated("one"):
        found = f"NOT FOUND {found}"
    ground.end(["one"])
    idle += stream.run(rest, seconds=max(_BASELINE_SECONDS, _WATCHED_SECONDS - waited))
    return f"idle {idle} of the rest, {alone} without them; one GPU {found}"


def protected_claim(ground: Ground, _: object) -> str:
    """A claim with kube-scheduler's finalizer, which the user has set, and a pod for it."""
    body = objects.claim("protected", SMALL)
    body["metadata"]["finalizers"] = [SCHEDULER_FINALIZER]
    ground.api.create(RESOURCE_CLAIMS, body)
    ground.api.create(PODS, objects.pod("protected", resourceClaimName="protected"))
    states, end = set[str](), time.monotonic() + _FINALIZER_SECONDS
    while time.monotonic() < end:
        found = ground.api.get(RESOURCE_CLAIMS, "protected", namespace="default")
        states.add(found["metadata"]["resourceVersion"])
        time.sleep(0.005)
    allocated = ground.is_allocated("protected")
    ground.end(["protected"])
    gone = seconds_until(lambda: not _is_there(ground, "protected"), limit=LIMIT)
    ended = "NEVER ENDED" if gone is None else f"ended in {gone:.2f} s"
    held = "allocated" if allocated else "NOT ALLOCATED"
    return f"{held}, {len(states)} states in {_FINALIZER_SECONDS:.0f} s, {ended}"


@dataclass(frozen=True, slots=True)
class _Idle:
    """Time that slices were looked at, and how much of that they were idle, in seconds."""

    looked: float = 0.0
    idle: float = 0.0

    def __add__(self, other: _Idle) -> _Idle:
        return _Idle(self.looked + other.looked, self.idle + other.idle)

    def __str__(self) -> str:
        return f"{100 * self.idle / self.looked:.0f} %"


class _Stream:
    """Pods of a small slice: each that has it ends after a second, and another comes."""

    def __init__(self, ground: Ground, *, outstanding: int) -> None:
        self._ground = ground
        self._outstanding = outstanding
        self._numbers = itertools.count()
        self._asked: set[str] = set()
        self._since: dict[str, float] = {}
        self.served = 0

    def run(self, rest: int, *, seconds: float, until: str = "") -> _Idle:
        """Share of ``rest`` slices that nobody has.

        It ends after ``seconds``, or when the claim ``until`` is allocated.
        """
        idle, end = _Idle(), time.monotonic() + seconds
        while (began := time.monotonic()) < end:
            found = self._ground.api.list(RESOURCE_CLAIMS, namespace="default").items
            has = {c["metadata"]["name"] for c in found if _allocated(c)}
            if until and until in has:
                break
            share = 1 - len(has & self._asked) / rest
            self._turn(has)
            idle += _Idle(time.monotonic() - began, share * (time.monotonic() - began))
        return idle

    def _turn(self, has: set[str]) -> None:
        now = time.monotonic()
        for name in (has & self._asked) - self._since.keys():
            self._since[name] = now
            self.served += 1
        over = {name for name, since in self._since.items() if now >= since + _LIVES_SECONDS}
        self._ground.end(over)
        self._asked -= over
        for name in over:
            del self._since[name]
        new = [f"small-{next(self._numbers)}" for _ in range(self._outstanding - len(self._asked))]
        each(lambda name: self._ground.ask(str(name)), new)
        self._asked.update(new)


def _exactly(profile: str, *, count: int = 1) -> Obj:
    return {"deviceClassName": class_name(profile), "allocationMode": "ExactCount", "count": count}


def _allocated(claim: Obj) -> bool:
    return bool((claim.get("status") or {}).get("allocation"))


def _is_there(ground: Ground, name: str) -> bool:
    found = ground.api.list(RESOURCE_CLAIMS, namespace="default").items
    return any(claim["metadata"]["name"] == name for claim in found)
