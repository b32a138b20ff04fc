"""Form of a recording: lines of JSON, a header, then the state, then what happened.

The state is what stands before ``Ready``: claims that had slices, pods that waited. Times are in
microseconds since the header's ``begun``; a pod that was placed at once was placed at the time when
it asked. A number stands for each question (``ask``) and for each claim. A recording may end
anywhere: its last line may be cut off.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from dra.claims.allocation import AllocatedDevice, Allocation
from dra.claims.classes import Quota
from dra.claims.wants import ClaimWants, Constraint, Want
from dra.gpu.inventory import Inventory
from dra.gpu.mignode import from_mignode, to_mignode
from dra.gpu.shares import Ask

FORMAT = "mig-decisions"
VERSION = 1
LINE_BYTES = 16 * 2**20
"""Upper bound on a line, for the reader."""

Time = Annotated[int, Meta(ge=0)]
Number = Annotated[int, Meta(ge=0)]
Device = tuple[str, Ask, str]
"""A device by its name, the limits of a share of it, and the class that it was asked of."""


class _Line(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="e", kw_only=True):
    pass


class Header(_Line, frozen=True, tag=FORMAT):
    """The first line. ``begun``: start of the recording, in RFC 3339.

    ``dropped``: number of lines that are missing before this recording.
    """

    version: int
    driver: str
    begun: str
    dropped: int = 0


class NodeState(_Line, frozen=True, tag="node"):
    """A node from now on, as a MigNode without what claims hold; None if it is gone."""

    t: Time
    node: str
    mignode: dict[str, Any] | None = None

    def inventory(self) -> Inventory | None:
        """The node's GPUs; None of a node that is gone.

        Raises:
            ValueError: no node could have them.
        """
        if self.mignode is None:
            return None
        status = {**self.mignode["status"], "conditions": _READY}
        return from_mignode({**self.mignode, "status": status})


class DemandState(_Line, frozen=True, tag="demand"):
    """The mix of requested profiles that policies use from now on (``Demand.counts``)."""

    counts: dict[str, float]


class QuotaState(_Line, frozen=True, tag="quotas"):
    """Quotas from now on, by class."""

    limits: dict[str, Quota]


class AskedClaim(msgspec.Struct, frozen=True, omit_defaults=True):
    """A claim as the allocator reads it; its constraints do not name the claim."""

    number: Number
    choices: tuple[tuple[Want, ...], ...]
    constraints: tuple[Constraint, ...] = ()
    sharing: dict[str, str] = {}


class Asked(_Line, frozen=True, tag="ask"):
    """A pod asks for its claims; ``ask`` is the number of this question.

    ``pod`` and ``tenant``: names of the pod and its namespace, or words that stand for them.
    ``barred``: nodes where the pod could not go, whatever is free there. ``gang``: its gang, of
    which ``needs`` pods are placed together. ``lasts``: how long it keeps what it gets, if no other
    line says so.
    """

    t: Time
    ask: Number
    pod: str
    tenant: str
    claims: tuple[AskedClaim, ...]
    barred: tuple[str, ...] = ()
    priority: int = 0
    gang: str = ""
    needs: int = 1
    lasts: Time | None = None


class Placed(_Line, frozen=True, tag="placed"):
    """Devices were given to the pod of question ``ask``, each with the number of its claim.

    ``cost``: charge of the default policy, in memory slices. ``passed``: nodes where the pod could
    not go at the time. ``without``: claims that only hold back what this pod was to have, and so
    were not in its way.
    """

    t: Time
    ask: Number
    node: str
    devices: tuple[tuple[Number, str], ...]
    cost: float = 0.0
    passed: tuple[str, ...] = ()
    without: tuple[Number, ...] = ()


class Left(_Line, frozen=True, tag="left"):
    """The pod of question ``ask`` is gone, and had not been placed."""

    t: Time
    ask: Number


class Held(_Line, frozen=True, tag="held"):
    """A claim holds devices for which this recording has no question.

    ``back``: the devices are held back for a pod that waits.
    """

    t: Time
    claim: Number
    tenant: str
    node: str
    devices: tuple[Device, ...]
    back: bool = False

    def allocation(self, driver: str) -> Allocation:
        """The devices of the claim, as the books count them."""
        found = (
            AllocatedDevice("", driver, "", name, ask=ask, class_name=class_name)
            for name, ask, class_name in self.devices
        )
        return Allocation(tuple(found), self.node)


class Ended(_Line, frozen=True, tag="ended"):
    """A claim holds nothing any more."""

    t: Time
    claim: Number


class Ready(_Line, frozen=True, tag="ready"):
    """End of the state."""


Event = NodeState | DemandState | QuotaState | Asked | Placed | Left | Held | Ended | Ready
Line = Header | Event

encode = msgspec.json.Encoder(order="deterministic").encode
_decode = msgspec.json.Decoder(Line).decode


class RecordingError(ValueError):
    """The file is no recording, or a damaged one; says in which line, and what to do."""


@dataclass(frozen=True, slots=True)
class Recording:
    """``state``: what there was at the beginning; ``events``: what happened then.

    ``is_cut``: the last line is not whole.
    """

    header: Header
    state: tuple[Event, ...]
    events: tuple[Event, ...]
    is_cut: bool = False


_READY = [{"type": "Ready", "status": "True", "reason": "Recorded"}]


def as_recorded(inventory: Inventory) -> dict[str, Any]:
    """A node's MigNode without the parts that are only for people."""
    obj = to_mignode(inventory)
    obj["status"].pop("summary", None), obj["status"].pop("conditions", None)
    return obj


def read(lines: Iterable[bytes]) -> Recording:
    """The recording in ``lines``, each with its end of line.

    Raises:
        RecordingError: ``lines`` are no recording, of another version, or damaged before the last.
    """
    found, is_cut = list[Line](), False
    for number, raw in enumerate(lines, start=1):
        try:
            found.append(_decode(raw[:LINE_BYTES]))
        except msgspec.MsgspecError as error:
            if raw.endswith(b"\n") or number == 1:
                raise RecordingError(
                    f"line {number}: {error}: use an undamaged copy, and the kubectl mig of the "
                    "release that wrote it"
                ) from error
            is_cut = True
    if not found or not isinstance(found[0], Header):
        raise RecordingError(
            f"line 1: no {FORMAT}: name a file that the controller wrote (--decision-log)"
        )
    header, events = found[0], [line for line in found if not isinstance(line, Header)]
    if header.version != VERSION:
        raise RecordingError(
            f"line 1: version {header.version} is not read here, but {VERSION}: use the kubectl "
            "mig of the release that wrote it"
        )
    end = next((n for n, line in enumerate(events) if isinstance(line, Ready)), None)
    if end is None:
        raise RecordingError(
            "the state is not whole: the recording ended before its beginning was written; "
            "use another file"
        )
    return Recording(header, tuple(events[:end]), tuple(events[end + 1 :]), is_cut)


def asked_claim(wants: ClaimWants, named: Callable[[str], str]) -> AskedClaim:
    """A claim's question, numbered 0; the names that a tenant gave to requests are ``named``."""

    def request(name: str) -> str:
        return "/".join(map(named, name.split("/")))

    choices = tuple(tuple(replace(w, request=request(w.request)) for w in a) for a in wants.choices)
    constraints = tuple(
        replace(c, claim_uid="", requests=frozenset(map(request, c.requests)))
        for c in wants.constraints
    )
    return AskedClaim(0, choices, constraints, {request(k): v for k, v in wants.sharing.items()})
