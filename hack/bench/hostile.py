"""Loads of hostile and of merely ordinary tenants: ``python -m hack.bench.hostile``.

A table with a row for each load: what is wanted, and what was seen, by those who ask for a small
slice beside it or of the controller's memory. It runs on a real control plane where there are
binaries (``KUBEBUILDER_ASSETS``), else, or with ``--embedded``, on the simulator's API server.
Everything shares the machine, so compare rows of one run.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import click

from dra.claims.claims import SCHEDULER_FINALIZER
from dra.common.resources import DEVICE_CLASSES, PODS, RESOURCE_CLAIMS, Obj
from dra.gangs.membership import COUNT_LABEL, NAME_LABEL
from dra.gpu.geometry import Geometry
from dra.gpu.inventory import Inventory
from dra.gpu.names import DEFAULT_DRIVER, class_name
from hack.bench import objects
from hack.bench.ground import (
    LARGE,
    SMALL,
    Ground,
    free_small,
    half_full_nodes,
    prepared,
    seconds_until,
)
from hack.bench.objects import geometry
from hack.bench.site import Plane, each, embedded, real
from hack.cluster.binaries import CONTROL_PLANE, find_binaries
from hack.cluster.waiting import ClusterError

PRODUCT = "A100-SXM4-80GB"
Planes = Callable[[], contextlib.AbstractContextManager[Plane]]
LIMIT = 60.0
"""Seconds after which a claim counts as not allocated."""

BESIDE = 20
"""Small claims made one after the other while a load is there."""

HASTENED = 60
"""Factor by which limits of time are divided where a load waits for them."""

_LISTS = 3380
"""Empty lists in the parameters of one entry: 32 entries make 319 KiB, the most that is stored."""

_TERMS = 10_000
_SHUNNING = 60
_CHOOSY = 8
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"

_OTHERS_CLASS = "hostile-other"
_OTHERS_DRIVER = "other.example.com"
_OWN = f"device.attributes['{DEFAULT_DRIVER}']"
_GIGABYTES = f"'{'a' * 1000}'.replace('a', '{'b' * 1000}').replace('b', '{'c' * 1000}').size() > 0"

_SMALL_A_GPU = 7
_LIVES_SECONDS = 1.0
_BASELINE_SECONDS = 20.0
_WATCHED_SECONDS = 100.0
_FINALIZER_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class Size:
    """Size of the loads: pods that ``wait`` for what does not fit, claims ``of_others``."""

    waiting: int
    of_others: int


@dataclass(frozen=True, slots=True)
class Load:
    """A row: what is ``wanted``, and ``run``, which says what was seen.

    ``nodes`` makes so many nodes; ``hastened`` is what the controller's limits of time for holding
    back slices are divided by.
    """

    name: str
    wanted: str
    run: Callable[[Ground, Size], str]
    nodes: Callable[[Geometry, int], list[Inventory]] = half_full_nodes
    hastened: int = 1


def costly_selector(ground: Ground, _: Size) -> str:
    """A selector of 3 KB that makes gigabytes; others go on."""
    before = ground.memory("VmHWM")
    ground.ask("costly", _request(SMALL, _GIGABYTES))
    waits = beside(ground, "costly")
    text = f"others {waits}, {_said(ground, 'costly')}"
    grown = ground.memory("VmHWM") - before if ground.is_alive else None
    return f"{text}, peak +{grown} MiB" if grown is not None else f"{text}, CONTROLLER ENDED"


def parameters_of_others(ground: Ground, size: Size) -> str:
    """Claims with large parameters of another driver, made and deleted."""
    ground.api.create(DEVICE_CLASSES, _class_of_others())
    before = ground.memory()
    names = [f"other-{n}" for n in range(size.of_others)]
    each(lambda name: ground.api.create(RESOURCE_CLAIMS, _claim_of_others(name)), names)
    waits = beside(ground, "parameters")
    live = ground.memory() - before if ground.is_alive else None
    ground.end(names)
    gone = ground.memory() - before if ground.is_alive else None
    ground.api.delete(DEVICE_CLASSES, _OTHERS_CLASS)
    return f"+{live} MiB while there, +{gone} MiB after, others {waits}"


def pairs_of_a_root(ground: Ground, _: Size) -> str:
    """Two GPUs of a PCIe root, on half-full nodes."""
    pair = [_request("3g.40gb", name=name) for name in ("a", "b")]
    constraints = [
        {"matchAttribute": "resource.kubernetes.io/pcieRoot"},
        {"distinctAttribute": f"{DEFAULT_DRIVER}/parentUUID"},
    ]
    ground.ask("pair", *pair, constraints=constraints)
    return _answer(ground, "pair")


def four_of_a_gpu(ground: Ground, _: Size) -> str:
    """Four slices of a GPU that a selector names, the last on which they fit."""
    fitting = (g.uuid for n in ground.nodes[::-1] for g in n.gpus[::-1] if free_small(g) >= 4)  # noqa: PLR2004
    selector = f"{_OWN}.parentUUID == '{next(fitting)}'"
    ground.ask("four", *(_request(SMALL, selector, name=f"r{n}") for n in range(4)))
    return _answer(ground, "four")


def many_that_wait(ground: Ground, size: Size) -> str:
    """Pods that wait for whole GPUs while unrelated pods end, twenty a second."""
    names = [f"waits-{n}" for n in range(size.waiting)]
    ends = [f"ends-{n}" for n in range(BESIDE * 10)]
    each(ground.ask, ends)
    each(lambda name: ground.wait(str(name), limit=LIMIT), ends)
    each(lambda name: ground.ask(name, _request(LARGE)), names)
    with _ending(ground, ends):
        waits = beside(ground, "waits")
    return f"small ones {waits}"


def many_of_a_gang(ground: Ground, size: Size) -> str:
    """Pods with one gang's label that wait for whole GPUs; a gang of so many is never whole."""
    names = [f"mate-{n}" for n in range(size.waiting)]
    labels = {NAME_LABEL: "hostile", COUNT_LABEL: "2"}
    each(lambda name: ground.ask(name, _request(LARGE), labels=labels), names)
    waits = beside(ground, "mate")
    ground.end(names)
    return f"small ones {waits}"


def many_alternatives(ground: Ground, _: Size) -> str:
    """Three requests with eight alternatives each, of which none go together."""
    requests = [
        {
            "name": f"r{r}",
            "firstAvailable": [
                {
                    "name": f"a{n}",
                    "deviceClassName": class_name("3g.40gb"),
                    "selectors": _selectors(f"{_OWN}.productName != '{r}-{n}'"),
                }
                for n in range(8)
            ],
        }
        for r in range(3)
    ]
    same = [{"matchAttribute": f"{DEFAULT_DRIVER}/parentUUID"}]
    ground.ask("alternatives", *requests, constraints=same)
    waits = beside(ground, "alternatives")
    said = _said(ground, "alternatives")
    ground.end(["alternatives"])
    return f"others {waits}, {said}"


def many_shunned(ground: Ground, _: Size) -> str:
    """Pods without claims, on nodes, that shun all pods of all namespaces in many ways."""
    nodes = [inventory.node for inventory in ground.nodes]
    before = ground.memory()
    names = [f"shuns-{n}" for n in range(_SHUNNING)]
    where = {name: nodes[n % len(nodes)] for n, name in enumerate(names)}
    each(lambda name: ground.api.create(PODS, _shunning(str(name), where[str(name)])), names)
    waits = beside(ground, "shunning")
    grown = ground.memory() - before if ground.is_alive else None
    ground.end(names)
    return f"others {waits}, +{grown} MiB"


def many_terms(ground: Ground, _: Size) -> str:
    """Pods with claims that name their nodes by thousands of alternatives, of which none holds."""
    names = [f"choosy-{n}" for n in range(_CHOOSY)]
    for name in names:
        ground.api.create(RESOURCE_CLAIMS, objects.claim(name, SMALL))
        ground.api.create(PODS, _choosy(name))
    waits = beside(ground, "choosy")
    ground.end(names)
    return f"others {waits}"


def beside(ground: Ground, load: str) -> str:
    """Time that small claims waited beside a load, which are gone afterwards."""
    names = [f"beside-{load}-{n}" for n in range(BESIDE)]
    waits = ground.waits_of(names, limit=LIMIT)
    ground.end(names)
    return f"{median(waits):.2f} s, at most {max(waits):.2f} s"


def _answer(ground: Ground, name: str) -> str:
    took = ground.wait(name, limit=LIMIT)
    said = _said(ground, name) if took is None else ""
    ground.end([name])
    return f"found in {took:.2f} s" if took is not None else f"NOT FOUND, {said}"


def _said(ground: Ground, name: str) -> str:
    took = seconds_until(lambda: bool(ground.reason(name)), limit=LIMIT)
    return "NOTHING SAID" if took is None else f"{ground.reason(name)} said"


@contextlib.contextmanager
def _ending(ground: Ground, names: list[str]) -> Iterator[None]:
    """Twenty of the pods end each second, meanwhile."""
    stop = threading.Event()

    def end() -> None:
        for name in names:
            if stop.wait(0.05):
                return
            ground.end_pod(name)

    thread = threading.Thread(target=end)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _selectors(*texts: str) -> list[Obj]:
    return [{"cel": {"expression": text}} for text in texts]


def _request(profile: str, *selectors: str, name: str = objects.REQUEST) -> Obj:
    exactly: Obj = {"deviceClassName": class_name(profile)}
    if selectors:
        exactly["selectors"] = _selectors(*selectors)
    return {"name": name, "exactly": exactly}


def _class_of_others() -> Obj:
    selectors = _selectors(f"device.driver == '{_OTHERS_DRIVER}'")
    return {
        "apiVersion": DEVICE_CLASSES.api_version,
        "kind": DEVICE_CLASSES.kind,
        "metadata": {"name": _OTHERS_CLASS},
        "spec": {"selectors": selectors},
    }


def _claim_of_others(name: str) -> Obj:
    # Much larger once decoded, and like no other's: what is equal may be kept once.
    parameters: dict[str, Any] = {"k": [[] for _ in range(_LISTS)], "of": name}
    entries = [{"opaque": {"driver": _OTHERS_DRIVER, "parameters": parameters}} for _ in range(32)]
    body = objects.claim(name, SMALL)
    request = {"name": "r", "exactly": {"deviceClassName": _OTHERS_CLASS}}
    body["spec"] = {"devices": {"requests": [request], "config": entries}}
    return body


def _shunning(name: str, node: str) -> Obj:
    terms = [
        {"topologyKey": f"{name}-{n}", "namespaceSelector": {}, "labelSelector": {}}
        for n in range(_TERMS)
    ]
    body = objects.pod(name)
    body["spec"] |= {
        "resourceClaims": [],
        "nodeName": node,
        "affinity": {"podAntiAffinity": {_REQUIRED: terms}},
        "containers": [{"name": "c", "image": "none"}],
    }
    return body


def _choosy(name: str) -> Obj:
    terms = [
        {"matchExpressions": [{"key": f"{name}-{n}", "operator": "Exists"}]} for n in range(_TERMS)
    ]
    body = objects.pod(name, resourceClaimName=name)
    body["spec"]["affinity"] = {"nodeAffinity": {_REQUIRED: {"nodeSelectorTerms": terms}}}
    return body


def two_empty_gpus(shape: Geometry, _: int) -> list[Inventory]:
    """One node of two empty GPUs, however many are asked for."""
    node = objects.inventory("node-0000", shape)
    return [replace(node, gpus=node.gpus[:2])]


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


LOADS = (
    Load("costly selector", "others <= 1 s, memory flat", costly_selector),
    Load("parameters of others", "memory flat", parameters_of_others),
    Load("pair of a PCIe root", "found", pairs_of_a_root),
    Load("four of a named GPU", "found", four_of_a_gpu),
    Load("many wait, others end", "<= 2 s", many_that_wait),
    Load("many of one gang", "<= 2 s", many_of_a_gang),
    Load("3 x 8 alternatives", "others <= 250 ms a decision", many_alternatives),
    Load("pods that shun all", "others <= 1 s, memory flat", many_shunned),
    Load("10,000 node terms", "others <= 1 s", many_terms),
    Load(
        "one held for ever",
        "the rest used, overtaken 20 times and while slices end",
        held_for_ever,
        nodes=two_empty_gpus,
        hastened=HASTENED,
    ),
    Load("kube-scheduler's finalizer", "allocated, few states", protected_claim),
)


@click.command()
@click.option("--nodes", default=100, show_default=True, help="Nodes of eight half-full GPUs.")
@click.option("--waiting", default=500, show_default=True, help="Pods that wait in vain.")
@click.option("--of-others", default=300, show_default=True, help="Claims of another driver.")
@click.option("--only", multiple=True, help="Beginning of a row's name; repeatable.")
@click.option("--embedded", "is_embedded", is_flag=True, help="Without binaries.")
def main(
    *,
    nodes: int,
    waiting: int,
    of_others: int,
    only: tuple[str, ...],
    is_embedded: bool,
) -> None:
    """Print what each load comes to."""
    binaries = find_binaries(os.environ, home=Path.home())
    missing = binaries.missing(CONTROL_PLANE)
    if missing and not is_embedded:
        click.echo(f"embedded API server: {missing}")
    planes: Planes = embedded if is_embedded or missing else lambda: real(binaries)
    rows = [load for load in LOADS if not only or load.name.startswith(only)]
    size = Size(waiting, of_others)
    shape, size = geometry(PRODUCT), Size(waiting, of_others)
    click.echo("| load | wanted | seen |\n|---|---|---|")
    for load in rows:
        seen = _seen(planes, load, size, load.nodes(shape, nodes))
        click.echo(f"| {load.name} | {load.wanted} | {seen} |")


def _seen(planes: Planes, load: Load, size: Size, inventories: list[Inventory]) -> str:
    """Run a load on a cluster of its own, as it may end the controller; what was seen."""
    try:
        with planes() as plane, prepared(plane, inventories, hastened=load.hastened) as ground:
            return _run(load, ground, size)
    except (ClusterError, OSError) as error:
        return f"{error} (before the load, or after it)"


def _run(load: Load, ground: Ground, size: Size) -> str:
    try:
        return load.run(ground, size)
    except (ClusterError, OSError) as error:
        return f"{error} (the controller {'runs' if ground.is_alive else 'HAS ENDED'})"


if __name__ == "__main__":
    main()
