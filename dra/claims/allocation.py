"""``status.allocation`` of a ResourceClaim: reading one, and writing one that will be honoured.

What a writer that is not kube-scheduler must observe was learnt on a real API server: the exact
node selector (one term, ``matchFields`` on ``metadata.name``) is what node authorisation
recognises, and an allocation without ``allocationTimestamp`` is completed by the scheduler and
then refused as immutable.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dra.claims.sharing import UNSHARED, Sharing
from dra.common.resources import at

MAX_RESULTS = 32


@dataclass(frozen=True, slots=True)
class AllocatedDevice:
    """An entry of ``allocation.devices.results``; ``request`` may be ``request/subrequest``.

    ``sharing`` is that of the allocation's configuration, where somebody has read it.
    """

    request: str
    driver: str
    pool: str
    device: str
    admin_access: bool = False
    tolerations: tuple[Mapping[str, Any], ...] = field(default=(), hash=False)
    sharing: Sharing = UNSHARED

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
        """The devices of one driver; others are none of our business."""
        return tuple(d for d in self.devices if d.driver == driver)


def read_allocation(obj: Mapping[str, Any]) -> Allocation:
    """The allocation in ``status.allocation``."""
    return Allocation(
        devices=tuple(
            AllocatedDevice(
                request=r["request"],
                driver=r["driver"],
                pool=r["pool"],
                device=r["device"],
                admin_access=bool(r.get("adminAccess")),
                tolerations=tuple(at(r, "tolerations")),
            )
            for r in at(obj, "devices", "results")
        ),
        node=_node_name(obj.get("nodeSelector")),
        config=tuple(at(obj, "devices", "config")),
    )


def write_allocation(
    devices: Sequence[AllocatedDevice],
    node: str,
    *,
    timestamp: str,
    config: Iterable[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """``status.allocation`` for ``devices`` on ``node``.

    ``timestamp`` is RFC 3339 in UTC with whole seconds. ``config`` entries are those of
    ``allocation_config``; the node reads no other configuration.
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


def _node_name(selector: Mapping[str, Any] | None) -> str:
    terms = (selector or {}).get("nodeSelectorTerms", [])
    if len(terms) != 1 or terms[0].get("matchExpressions"):
        return ""
    match terms[0].get("matchFields"):
        case [{"key": "metadata.name", "operator": "In", "values": [node]}]:
            return str(node)
    return ""
