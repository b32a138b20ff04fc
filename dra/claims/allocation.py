"""``status.allocation`` of a ResourceClaim: reading one, and writing one that will be honoured.

A writer that is not kube-scheduler must observe two things. Node authorisation recognises only the
exact node selector: one term, ``matchFields`` on ``metadata.name``. kube-scheduler completes an
allocation without ``allocationTimestamp``, which the API server then refuses as immutable.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from dra.claims.conditions import binding_fields
from dra.claims.sharing import UNSHARED, Settings, Sharing, asked_share, settings_of
from dra.common.quantity import QuantityError, mebibytes, parse_quantity
from dra.common.resources import at
from dra.gpu.devices import ENGINES
from dra.gpu.shares import NO_ASK, Ask

_MOST_CHARACTERS = 63
"""Upper bound on a label's value; a node's name has up to 253."""


def node_label(driver: str) -> str:
    """Key of the label of an allocated claim that names its node."""
    return f"{driver}/node"


def label_of(node: str) -> str:
    """Value of that label: the node's name, or a digest of one that is too long."""
    if len(node) <= _MOST_CHARACTERS:
        return node
    return hashlib.sha256(node.encode()).hexdigest()[:_MOST_CHARACTERS]


MAX_RESULTS = 32
_MIB = 2**20
_SLICE = "-mig-"


@dataclass(frozen=True, slots=True)
class AllocatedDevice:
    """An entry of ``allocation.devices.results``; ``request`` may be ``request/subrequest``.

    ``sharing``: that of the allocation's configuration, once it was read. ``share_id``: tells apart
    several shares of one device; API servers without consumable capacity keep none. ``ask``: limits
    of a share, as far as the allocation says. ``class_name``: class of the request, if the claim
    was read too.
    """

    request: str
    driver: str
    pool: str
    device: str
    admin_access: bool = False
    tolerations: tuple[Mapping[str, Any], ...] = field(default=(), hash=False)
    sharing: Sharing = UNSHARED
    share_id: str = ""
    ask: Ask = NO_ASK
    class_name: str = ""

    @property
    def base_request(self) -> str:
        """The request without its subrequest, as kubelet wants it."""
        return self.request.partition("/")[0]


@dataclass(frozen=True, slots=True)
class Allocation:
    """An allocation. ``node`` is empty unless the selector names exactly one node by name."""

    devices: tuple[AllocatedDevice, ...]
    node: str = ""
    config: tuple[Mapping[str, Any], ...] = ()

    def of_driver(self, driver: str) -> tuple[AllocatedDevice, ...]:
        """The devices of one driver."""
        return tuple(d for d in self.devices if d.driver == driver)


def read_allocation(obj: Mapping[str, Any]) -> Allocation:
    """The allocation in ``status.allocation``."""
    config = tuple(at(obj, "devices", "config"))
    settings: dict[str, Settings] = {}

    def ask(result: Mapping[str, Any]) -> Ask:
        """Limits of a share: what was consumed goes before what the configuration says."""
        driver = result["driver"]
        if driver not in settings:
            settings[driver] = settings_of(config, driver)
        said = asked_share(settings[driver], result["request"])
        consumed = at(result, "consumedCapacity", default={})
        memory, cores = _whole(consumed.get("memory")), _whole(consumed.get("cores"))
        if memory is None and cores is None:
            return said
        return replace(
            said,
            memory_mib=said.memory_mib if memory is None else memory // _MIB,
            cores=said.cores if cores is None else cores,
        )

    return Allocation(
        devices=tuple(
            AllocatedDevice(
                request=r["request"],
                driver=r["driver"],
                pool=r["pool"],
                device=r["device"],
                admin_access=bool(r.get("adminAccess")),
                tolerations=tuple(at(r, "tolerations")),
                share_id=r.get("shareID") or "",
                ask=ask(r) if _may_be_part(r["device"]) else NO_ASK,
            )
            for r in at(obj, "devices", "results")
        ),
        node=_node_name(obj.get("nodeSelector")),
        config=config,
    )


def write_allocation(
    devices: Sequence[AllocatedDevice],
    node: str,
    *,
    timestamp: str,
    config: Iterable[Mapping[str, Any]] = (),
    awaited: Container[str] = (),
) -> dict[str, Any]:
    """``status.allocation`` for ``devices`` on ``node``.

    ``timestamp`` is RFC 3339 in UTC with whole seconds. ``config`` entries are those of
    ``allocation_config``; the node reads no other configuration. ``awaited``: names of devices
    whose slices kube-scheduler is to wait for.
    """
    allocated: dict[str, Any] = {
        "results": [
            {
                "request": d.request,
                "driver": d.driver,
                "pool": d.pool,
                "device": d.device,
                **({"adminAccess": True} if d.admin_access else {}),
                **({"tolerations": [*d.tolerations]} if d.tolerations else {}),
                **(_consumed(d) if d.share_id else {}),
                **(binding_fields() if d.device in awaited else {}),
            }
            for d in devices
        ]
    }
    configs = [dict(entry) for entry in config]
    if configs:
        allocated["config"] = configs
    return {
        "allocationTimestamp": timestamp,
        "devices": allocated,
        "nodeSelector": node_selector(node),
    }


def node_selector(node: str) -> dict[str, Any]:
    """The node selector of an allocation on ``node``."""
    fields = [{"key": "metadata.name", "operator": "In", "values": [node]}]
    return {"nodeSelectorTerms": [{"matchFields": fields}]}


def allocation_config(
    requests: Iterable[str],
    claim_config: Iterable[Mapping[str, Any]],
    class_config: Mapping[str, Iterable[Mapping[str, Any]]],
) -> list[dict[str, Any]]:
    """Class and claim configuration as ``allocation.devices.config``, classes first (KEP-4381).

    ``requests`` are the names of the allocated requests (``request/subrequest`` where one was
    chosen), ``class_config`` maps each of them to the ``spec.config`` of its class. Claim entries
    may name a request or a subrequest; those for what was not allocated are left out.
    """
    entries: list[dict[str, Any]] = []
    names = list(requests)
    known = {*names, *(name.partition("/")[0] for name in names)}
    for name in names:
        entries.extend(
            {"source": "FromClass", "requests": [name], **entry}
            for entry in class_config.get(name, ())
        )
    for entry in claim_config:
        wanted = [r for r in at(entry, "requests") if r in known]
        if wanted or not entry.get("requests"):
            entries.append({"source": "FromClaim", **entry, "requests": wanted})
    return entries


def share_id(claim_uid: str, device: str) -> str:
    """The id of the share of ``device`` that a claim has: always the same."""
    return str(uuid.uuid5(uuid.NAMESPACE_OID, f"{claim_uid}/{device}"))


def _consumed(device: AllocatedDevice) -> dict[str, Any]:
    """Fields of a share, as kube-scheduler writes them: every capacity, even if it is zero."""
    engines = ENGINES if _SLICE in device.device else ()
    return {
        "shareID": device.share_id,
        "consumedCapacity": {
            "memory": mebibytes(device.ask.memory_mib or 0),
            "cores": str(device.ask.cores or 0),
            "shares": "1",
            "multiprocessors": "0",
            **dict.fromkeys(engines, "0"),
        },
    }


def _may_be_part(device: str) -> bool:
    """True if several claims may have ``device``: a whole GPU, or a share of a slice."""
    return _SLICE not in device or device.endswith("-share")


def _whole(amount: Any) -> int | None:
    """A quantity, rounded up; None for None or for a text that is no quantity."""
    if amount is None:
        return None
    try:
        return -int(-parse_quantity(amount) // 1)
    except QuantityError:
        return None


def _node_name(selector: Mapping[str, Any] | None) -> str:
    terms = (selector or {}).get("nodeSelectorTerms", [])
    if len(terms) != 1 or terms[0].get("matchExpressions"):
        return ""
    match terms[0].get("matchFields"):
        case [{"key": "metadata.name", "operator": "In", "values": [node]}]:
            return str(node)
    return ""
