"""Claims of a pod, read for who allocates them and for who explains why they wait."""

from __future__ import annotations

import pytest

from dra.cel.kinds import Kinds
from dra.cel.selectors import Selectors
from dra.claims.claims import Claim, read_claim
from dra.claims.classes import generated_classes, read_class
from dra.claims.reader import KnownClaim, ReadClaims, Reader, read_claims
from dra.claims.reasons import Obstacle, Reason
from dra.claims.wants import ClaimWants
from dra.common.resources import Obj
from tests.controller.helpers.objects import DRIVER, claim, device_class, request, versioned


class Listening(Reader):
    """Keeps the names of the claims that it read."""

    def __init__(self) -> None:
        bodies = generated_classes(DRIVER, ["1g.5gb"])
        classes = {c["metadata"]["name"]: read_class(c, DRIVER) for c in bodies}
        super().__init__(DRIVER, Kinds(Selectors()), classes)
        self.heard: list[str] = []

    def read(self, claim: Claim) -> ClaimWants | Obstacle | None:
        self.heard.append(claim.ref.name)
        return super().read(claim)


def good(name: str) -> Obj:
    return claim(name, request("r", "mig-1g.5gb"))


def faulty(name: str) -> Obj:
    return claim(name, request("r", "missing"), request("s", "mig-1g.5gb"))


def going(name: str) -> Obj:
    body = good(name)
    body["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    return body


def read(*bodies: Obj, reader: Reader | None = None, stops_early: bool = False) -> ReadClaims:
    known = [KnownClaim(read_claim(b), b) for b in map(versioned, bodies)]
    return read_claims(known, reader or Listening(), stops_early=stops_early)


@pytest.mark.parametrize(
    ("bodies", "heard"),
    [
        ((good("a"), faulty("b"), good("c")), ["a", "b"]),
        ((going("a"), faulty("b")), ["a"]),
        ((good("a"), good("b")), ["a", "b"]),
    ],
    ids=["faulty", "going", "neither"],
)
def test_whoever_decides_evaluates_nothing_after_a_claim_that_is_in_the_way(
    bodies: tuple[Obj, ...], heard: list[str]
) -> None:
    reader = Listening()
    read(*bodies, reader=reader, stops_early=True)
    assert reader.heard == heard


def many(name: str) -> Obj:
    """Alternatives, 32 requests of eight each, as many as a claim may have."""
    each = {"deviceClassName": "mig-1g.5gb"}
    alternatives = [{"name": f"s{n}", **each} for n in range(8)]
    return claim(name, *({"name": f"r{n}", "firstAvailable": alternatives} for n in range(32)))


def foreign(name: str) -> Obj:
    body = many(name)
    for each in body["spec"]["devices"]["requests"]:
        each["firstAvailable"] = [{"name": "s", "deviceClassName": "theirs"}] * 8
    return body


def test_of_all_claims_of_a_pod_together_so_many_requests_are_read() -> None:
    """Each was read, of hundreds, for seconds in the thread that decides."""
    reader = Listening()
    theirs = device_class("theirs", "device.driver == 'gpu.example.com'")
    reader.classes = {**reader.classes, "theirs": read_class(theirs, DRIVER)}
    others = [foreign(f"o{n}") for n in range(4)]
    found = read(*others, *(many(f"c{n}") for n in range(6)), good("z"), reader=reader)
    assert [(f.claim.name, f.obstacle.reason) for f in found.faults] == [("c2", Reason.UNSUPPORTED)]
    assert "more than 512 requests and alternatives together" in found.faults[0].obstacle.message
    assert reader.heard == ["o0", "o1", "o2", "o3", "c0", "c1", "c2"]
    assert not read(many("a"), many("b")).faults
