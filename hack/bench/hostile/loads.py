"""Loads on a controller, each with what it comes to for those who ask beside it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median
from typing import Any

from dra.common.resources import DEVICE_CLASSES, RESOURCE_CLAIMS, Obj
from dra.gangs.membership import COUNT_LABEL, NAME_LABEL
from dra.gpu.names import DEFAULT_DRIVER, class_name
from hack.bench.control import objects
from hack.bench.hostile.ground import (
    LARGE,
    SMALL,
    Ground,
    each,
    free_small,
    seconds_until,
)

LIMIT = 60.0
"""Seconds after which a claim counts as not allocated."""

BESIDE = 20
"""Small claims made one after the other while a load is there."""

_LISTS = 3380
"""Empty lists in the parameters of one entry: 32 entries make 319 KiB, the most that is stored."""

_OTHERS_CLASS = "hostile-other"
_OTHERS_DRIVER = "other.example.com"
_OWN = f"device.attributes['{DEFAULT_DRIVER}']"
_GIGABYTES = f"'{'a' * 1000}'.replace('a', '{'b' * 1000}').replace('b', '{'c' * 1000}').size() > 0"


@dataclass(frozen=True, slots=True)
class Size:
    """Size of the loads: pods that ``wait`` for what does not fit, claims ``of_others``."""

    waiting: int
    of_others: int


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
