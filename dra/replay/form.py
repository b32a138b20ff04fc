"""Form of a recording: lines of JSON, a header, then the state, then what happened.

The state is what stands before ``Ready``: claims that had slices, pods that waited. Times are in
microseconds since the header's ``begun``, and no two lines have the same; numbers stand for what
was asked (``ask``) and for its claims. A recording ends anywhere: its last line may be cut off.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from dra.allocator.score import POLICIES
from dra.claims.allocation import MAX_RESULTS, AllocatedDevice, Allocation
from dra.claims.sharing import OFFERED
from dra.claims.wants import Constraint, Want
from dra.gpu.inventory import Inventory
from dra.gpu.mignode import from_mignode, to_mignode
from dra.gpu.names import parse_device
from dra.gpu.shares import Ask

FORMAT = "mig-decisions"
VERSION = 1
LINE_BYTES = 16 * 2**20
"""Upper bound on a line, for the reader."""

Time = Annotated[int, Meta(ge=0)]
Number = Annotated[int, Meta(ge=0)]
Device = tuple[str, Ask]
"""A device by its name, and the limits of a share of it."""


class _Line(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="e", kw_only=True):
    pass


class Header(_Line, frozen=True, tag=FORMAT):
    """``begun`` is RFC 3339. ``dropped`` lines are missing before this recording."""

    version: int
    driver: str
    begun: str
    dropped: int = 0


class Shape(_Line, frozen=True, tag="geometry"):
    """A geometry as in a MigNode; nodes name it by its number."""

    number: Number
    geometry: dict[str, Any]


class NodeState(_Line, frozen=True, tag="node"):
    """A node from now on, as a MigNode without what claims hold; none if it is gone."""

    t: Time
    node: str
    mignode: dict[str, Any] | None = None
    shapes: tuple[Number, ...] = ()


class DemandState(_Line, frozen=True, tag="demand"):
    """The mix of profiles that policies reckon with from now on."""

    counts: dict[str, float]


class AskedClaim(msgspec.Struct, frozen=True, omit_defaults=True):
    """A claim in the allocator's own terms; constraints name no claim, requests are numbered."""

    number: Number
    choices: tuple[tuple[Want, ...], ...]
    constraints: tuple[Constraint, ...] = ()
    sharing: dict[str, str] = {}


class Asked(_Line, frozen=True, tag="ask"):
    """A pod asks. ``pod`` is its name, or stands for it; so does ``tenant`` for its namespace.

    It could not go to the nodes ``barred``, whatever they have. Of a ``gang`` so many are placed
    together as it ``needs``. ``lasts`` is how long it keeps what it gets, where nothing else says.
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
    """Devices were given, with the claim of each.

    ``cost`` is what the default policy charges, in memory slices. It could not go to the nodes
    ``passed`` at the time; ``without`` are claims that did not bind it: what was held back for it.
    """

    t: Time
    ask: Number
    node: str
    devices: tuple[tuple[Number, str], ...]
    cost: float = 0.0
    passed: tuple[str, ...] = ()
    without: tuple[Number, ...] = ()


class Waits(_Line, frozen=True, tag="waits"):
    """It waits, for a reason of the events."""

    t: Time
    ask: Number
    reason: str


class Left(_Line, frozen=True, tag="left"):
    """It is gone, and had not been placed."""

    t: Time
    ask: Number


class Held(_Line, frozen=True, tag="held"):
    """A claim holds devices that nobody asked for here.

    ``back``: they are held back for who waits.
    """

    t: Time
    claim: Number
    tenant: str
    node: str
    devices: tuple[Device, ...]
    back: bool = False

    def allocation(self, driver: str) -> Allocation:
        """Devices that it holds, as the books count them."""
        found = (AllocatedDevice("", driver, "", name, ask=ask) for name, ask in self.devices)
        return Allocation(tuple(found), self.node)


class Ended(_Line, frozen=True, tag="ended"):
    """A claim holds nothing any more."""

    t: Time
    claim: Number


class Ready(_Line, frozen=True, tag="ready"):
    """End of the state."""


Event = NodeState | DemandState | Asked | Placed | Waits | Left | Held | Ended | Ready
Line = Header | Shape | Event

encode = msgspec.json.Encoder(order="deterministic").encode
_decode = msgspec.json.Decoder(Line).decode


class RecordingError(ValueError):
    """No recording, or one that is damaged; says in which line, and what to do."""


@dataclass(frozen=True, slots=True)
class Recording:
    """``state`` is what there was when it was begun, ``events`` what happened then.

    ``shapes`` are geometries by number. ``is_cut``: its last line is not whole.
    """

    header: Header
    state: tuple[Event, ...]
    events: tuple[Event, ...]
    shapes: Mapping[int, dict[str, Any]] = field(default_factory=dict)
    is_cut: bool = False

    def inventory(self, line: NodeState) -> Inventory | None:
        """The node's GPUs; None of a node that is gone.

        Raises:
            ValueError: no node could have them.
        """
        if line.mignode is None:
            return None
        named = [{**self.shapes[n], "name": f"geometry-{i}"} for i, n in enumerate(line.shapes)]
        status = {**line.mignode["status"], "geometries": named, "conditions": _READY}
        return from_mignode({**line.mignode, "status": status})


_READY = [{"type": "Ready", "status": "True", "reason": "Recorded"}]


def split_inventory(inventory: Inventory) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A node's MigNode without its geometries, and these in the order of their numbers in it."""
    obj = to_mignode(inventory)
    status = obj["status"]
    shapes = [{**g, "name": "g"} for g in status.pop("geometries", ())]
    status.pop("summary", None), status.pop("conditions", None)
    return obj, shapes


def read(lines: Iterable[bytes]) -> Recording:
    """The recording in ``lines``, each with its end of line.

    Raises:
        RecordingError: it is none, of another version, or damaged before its last line.
    """
    found = [*_read(lines)]
    if not found or not isinstance(found[0], Header):
        raise RecordingError(
            f"line 1: no {FORMAT}: name a file that the controller wrote (--decision-log)"
        )
    header, is_cut = found[0], found[-1] is None
    if header.version != VERSION:
        raise RecordingError(
            f"line 1: version {header.version} is not read here, but {VERSION}: use the kubectl "
            "mig of the release that wrote it"
        )
    shapes = {line.number: line.geometry for line in found if isinstance(line, Shape)}
    events = [line for line in found if isinstance(line, Event)]
    end = next((n for n, line in enumerate(events) if isinstance(line, Ready)), None)
    if end is None:
        raise RecordingError(
            "the state is not whole: the recording ended before its beginning was written; "
            "use another file"
        )
    return Recording(header, tuple(events[:end]), tuple(events[end + 1 :]), shapes, is_cut)


T = TypeVar("T")


def _read(lines: Iterable[bytes]) -> Iterator[Line | None]:
    known = _Known()
    for number, raw in enumerate(lines, start=1):
        try:
            line = _decode(raw[:LINE_BYTES])
            known.take(line, is_first=number == 1)
        except (ValueError, msgspec.MsgspecError) as error:
            if not raw.endswith(b"\n") and number > 1:
                yield None
                return
            raise RecordingError(f"line {number}: {error}: use an undamaged copy") from error
        yield line


class _Known:
    """Names that the lines before have given."""

    def __init__(self) -> None:
        self._asks: dict[int, Asked] = {}
        self._claims = set[int]()
        self._shapes = set[int]()

    def take(self, line: Line, *, is_first: bool) -> None:
        """Raise ValueError if ``line`` cannot follow, or nobody could have asked so."""
        if isinstance(line, Header) is not is_first:
            raise ValueError("a header stands in the first line, and nowhere else")
        if isinstance(line, Placed | Waits | Left):
            _require("ask", [line.ask], self._asks)
        match line:
            case Shape():
                self._shapes.add(line.number)
            case NodeState():
                _require("geometry", line.shapes, self._shapes)
            case Asked():
                _check_wants(line)
                self._asks[line.ask] = line
                self._claims |= {claim.number for claim in line.claims}
            case Placed():
                own = {claim.number for claim in self._asks[line.ask].claims}
                _require("claim of the ask", [claim for claim, _ in line.devices], own)
                _check_devices(device for _, device in line.devices)
            case Held():
                self._claims.add(line.claim)
                _check_devices(device for device, _ in line.devices)
            case Ended():
                _require("claim", [line.claim], self._claims)


def _check_devices(names: Iterable[str]) -> None:
    for name in names:
        parse_device(name)


def _require(what: str, named: Iterable[T], known: Iterable[T]) -> None:
    for each in named:
        if each not in known:
            raise ValueError(f"{what} {each} is not known before it")


def _check_wants(line: Asked) -> None:
    for claim in line.claims:
        for want in (want for alternatives in claim.choices for want in alternatives):
            if want.policy not in POLICIES:
                raise ValueError(f"policy {want.policy!r}: allowed are {', '.join(POLICIES)}")
            if not 1 <= want.count <= MAX_RESULTS:
                raise ValueError(f"count {want.count}: allowed are 1 to {MAX_RESULTS}")
        if not claim.choices or not all(claim.choices):
            raise ValueError("a claim without requests")
        _require("sharing strategy", filter(None, claim.sharing.values()), OFFERED)


def anonymous(
    choices: Iterable[Iterable[Want]], constraints: Iterable[Constraint], sharing: Mapping[str, str]
) -> tuple[tuple[tuple[Want, ...], ...], tuple[Constraint, ...], dict[str, str]]:
    """The same with numbers in place of the names that a tenant gave to requests."""
    names: dict[str, str] = {}
    for index, alternatives in enumerate(choices):
        for rank, want in enumerate(alternatives):
            base, _, rest = want.request.partition("/")
            names[base] = str(index)
            names[want.request] = f"{index}/{rank}" if rest else str(index)
    wants = tuple(tuple(replace(w, request=names[w.request]) for w in a) for a in choices)
    bound = tuple(
        replace(
            c,
            claim_uid="",
            requests=frozenset(names[r] for r in c.requests if r in names),
        )
        for c in constraints
    )
    return wants, bound, {names[k]: v for k, v in sharing.items() if k in names}
