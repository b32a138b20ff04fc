"""The combinations that Kubernetes' own allocator is tested with, said with GPUs and slices.

By the names of the cases in its sources (``structured/internal/allocatortesting``), whose answers
these are: fits or not, and which alternative.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from dra.common.resources import Obj
from dra.gpu.inventory import Gpu
from tests.controller.helpers.deciding import decide
from tests.controller.helpers.objects import (
    claim,
    filled,
    first_available,
    gpu,
    instance,
    request,
    with_gpus,
)

OWN = "device.attributes['mig.dra.dev']"
FIRST, SECOND = (f"{OWN}.parentUUID == 'GPU-node-a-{n}'" for n in range(2))
PARENT, PROFILE = "mig.dra.dev/parentUUID", "mig.dra.dev/profile"
ALL, ADMIN = {"allocationMode": "All"}, {"adminAccess": True}
SMALL, HALF, FULL, ANY, WHOLE = (
    "mig-1g.5gb",
    "mig-3g.20gb",
    "mig-7g.40gb",
    "mig.dra.dev",
    "gpu.dra.dev",
)
ONE, TWO = (gpu(0),), (gpu(0), gpu(1))
BARE = tuple(gpu(n, mig=False) for n in range(2))


@dataclass(frozen=True)
class Case:
    """Requests of claims on the GPUs of a node; ``served`` is the number of devices by request."""

    gpus: Sequence[Gpu]
    claims: Sequence[Sequence[Obj]]
    served: dict[str, int] | None
    constraints: Sequence[Obj] = ()


def same(attribute: str, *requests: str) -> Obj:
    return {"matchAttribute": attribute, **({"requests": [*requests]} if requests else {})}


def distinct(attribute: str, *requests: str) -> Obj:
    return {"distinctAttribute": attribute, **({"requests": [*requests]} if requests else {})}


BIG_OR_SMALL = first_available("r", ("big", FULL, {}), ("small", SMALL, {}))

CASES = {
    "simple": Case(ONE, [[request("r")]], {"r": 1}),
    "small-and-large": Case(ONE, [[request("s"), request("l", "mig-4g.20gb")]], {"s": 1, "l": 1}),
    "small-and-large-backtrack-requests": Case(
        (filled(0, 0), gpu(1)), [[request("s", ANY), request("l", FULL)]], {"s": 1, "l": 1}
    ),
    "small-and-large-backtrack-claims": Case(
        (gpu(0), gpu(1)), [[request("s", ANY, count=7)], [request("l", FULL)]], {"s": 7, "l": 1}
    ),
    "not-enough-suitable-devices": Case(ONE, [[request("r", HALF, count=3)]], None),
    "no-slices": Case((gpu(0, unavailable="sick"),), [[request("r")]], None),
    "all-devices-single": Case(BARE[:1], [[request("r", WHOLE, **ALL)]], {"r": 1}),
    "all-devices-many": Case(TWO, [[request("r", HALF, **ALL)]], {"r": 4}),
    "all-devices-with-consumed-counters": Case(ONE, [[request("r", ANY, **ALL)]], None),
    "all-devices-plus-another": Case(
        (*BARE, gpu(2)), [[request("a", WHOLE, **ALL), request("b")]], {"a": 2, "b": 1}
    ),
    "all-devices-plus-another-reversed": Case(
        (*BARE, gpu(2)), [[request("b"), request("a", WHOLE, **ALL)]], {"a": 2, "b": 1}
    ),
    "all-devices-no-solution": Case(
        BARE, [[request("a", WHOLE, **ALL), request("b", WHOLE)]], None
    ),
    "all-devices-no-solution-reversed": Case(
        BARE, [[request("b", WHOLE), request("a", WHOLE, **ALL)]], None
    ),
    "all-devices-some-allocated": Case(
        (gpu(0, instances=(instance("1g.5gb", 3, uid="u"),)),), [[request("r", **ALL)]], None
    ),
    "all-devices-some-allocated-admin-access": Case(
        (gpu(0, instances=(instance("1g.5gb", 3, uid="u"),)), gpu(1)),
        [[request("r", WHOLE, **ALL, **ADMIN)]],
        {"r": 2},
    ),
    "count-devices-some-allocated-admin-access": Case(
        (gpu(0, instances=(instance("7g.40gb", 0, uid="u"),)),),
        [[request("r", WHOLE, **ADMIN)]],
        {"r": 1},
    ),
    "separate-claims-share-device-admin-access": Case(
        ONE, [[request("a", WHOLE, **ADMIN)], [request("b", WHOLE, **ADMIN)]], {"a": 1, "b": 1}
    ),
    "all-devices-some-allocating-admin-access": Case(
        TWO, [[request("a", WHOLE, **ADMIN), request("b", WHOLE, **ALL, **ADMIN)]], None
    ),
    "with-constraint": Case(
        TWO, [[request("r", HALF, count=2)]], {"r": 2}, constraints=[same(PARENT)]
    ),
    "with-constraint-non-existent-attribute": Case(
        TWO, [[request("r", count=2)]], None, constraints=[same("mig.dra.dev/none")]
    ),
    "with-constraint-not-matching-string-attribute": Case(
        TWO,
        [[request("a", SMALL, FIRST), request("b", SMALL, SECOND)]],
        None,
        constraints=[same(PARENT)],
    ),
    "with-constraint-not-matching-int-attribute-all-devices": Case(
        TWO, [[request("r", HALF, **ALL)]], None, constraints=[same(PARENT)]
    ),
    "with-constraint-for-request": Case(
        TWO,
        [[request("a", HALF, FIRST), request("b", HALF, SECOND), request("c", HALF)]],
        {"a": 1, "b": 1, "c": 1},
        constraints=[same(PARENT, "b", "c")],
    ),
    "with-constraint-for-request-retry": Case(
        (filled(0, 0), gpu(1)),
        [[request("a", "mig-4g.20gb"), request("b", HALF)]],
        {"a": 1, "b": 1},
        constraints=[same(PARENT)],
    ),
    "with-distinct-constraints": Case(
        TWO, [[request("r", count=2)]], {"r": 2}, constraints=[distinct(PARENT)]
    ),
    "with-distinct-constraints-no-solution": Case(
        TWO, [[request("r", count=3)]], None, constraints=[distinct(PARENT)]
    ),
    "with-distinct-constraints-attribute-not-set": Case(
        BARE, [[request("r", WHOLE, count=2)]], None, constraints=[distinct(PROFILE)]
    ),
    "with-distinct-constraints-with-subrequests": Case(
        TWO,
        [[first_available("r", ("a", SMALL, {"count": 3}), ("b", SMALL, {"count": 2}))]],
        {"r/b": 2},
        constraints=[distinct(PARENT, "r")],
    ),
    "too-many-devices-total": Case(
        tuple(gpu(n) for n in range(6)), [[request("a", **ALL), request("b", WHOLE)]], None
    ),
    "max-number-devices": Case(
        tuple(gpu(n) for n in range(5)), [[request("r", count=32)]], {"r": 32}
    ),
    "prioritized-list-first-unavailable": Case((filled(0, 0),), [[BIG_OR_SMALL]], {"r/small": 1}),
    "prioritized-list-non-available": Case((filled(0, *range(7)),), [[BIG_OR_SMALL]], None),
    "prioritized-list-subrequests-with-constraints-ref-sub-request": Case(
        TWO,
        [[request("a", FULL, FIRST), first_available("r", ("s", SMALL, {}), ("t", HALF, {}))]],
        {"a": 1, "r/t": 1},
        constraints=[same(PARENT, "a", "r/s")],
    ),
    "prioritized-list-with-backtracking": Case(
        ONE,
        [[BIG_OR_SMALL, first_available("q", ("half", HALF, {}), ("small", SMALL, {}))]],
        {"r/small": 1, "q/half": 1},
    ),
    "prioritized-list-too-many-in-first-subrequest": Case(
        tuple(gpu(n) for n in range(5)),
        [[first_available("r", ("all", SMALL, ALL), ("one", SMALL, {}))]],
        {"r/one": 1},
    ),
    "prioritized-list-allocation-mode-all-multiple-requests": Case(
        (*BARE, gpu(2)),
        [[first_available("r", ("all", WHOLE, ALL), ("one", WHOLE, {})), request("b", WHOLE)]],
        {"r/one": 1, "b": 1},
    ),
    "partitionable-devices-multiple-devices": Case(
        ONE, [[request("a", "mig-4g.20gb"), request("b", HALF)]], {"a": 1, "b": 1}
    ),
    "partitionable-devices-no-capacity-available": Case(
        ONE, [[request("a", "mig-4g.20gb", count=2)]], None
    ),
    "partitionable-devices-multiple-counters": Case(
        ONE, [[request("r", "mig-1g.5gb.me", count=2)]], None
    ),
    "check-combinations-with-backtracking": Case(
        (gpu(0), filled(1, 0)),
        [[request("a", ANY, count=3), request("b", HALF, FIRST, count=2)]],
        {"a": 3, "b": 2},
    ),
    "check-combinations-with-prioritized-list": Case(
        (filled(0, 0), filled(1, 0)),
        [[first_available("r", ("two", FULL, {"count": 2}), ("s", HALF, {"count": 2}))]],
        {"r/s": 2},
        constraints=[distinct(PARENT)],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_it_is_decided_as_by_kubernetes(name: str) -> None:
    case = CASES[name]
    bodies = [
        claim(f"c{n}", *requests, constraints=[*case.constraints])
        for n, requests in enumerate(case.claims)
    ]
    decision = decide(with_gpus(*case.gpus), *bodies)
    assert (None if decision is None else Counter(p.request for p in decision.picks)) == case.served
