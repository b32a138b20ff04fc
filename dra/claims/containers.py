"""Containers of a pod, what they use of its claims, and what one cannot use beside another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from dra.common.resources import at

_NAMED = 6


class Use(NamedTuple):
    """A ResourceClaim that a container uses: one request of it, or all if none is named."""

    claim: str
    request: str = ""


def container_uses(
    pod: Mapping[str, Any], names: Mapping[str, str | None]
) -> Iterator[tuple[str, frozenset[Use]]]:
    """The containers of a pod, each with what it uses of ResourceClaims.

    ``names`` are those of ``dra.claims.claims.claim_names``. The claim that kube-scheduler has made
    for the pod's extended resources is among them.
    """
    made = at(pod, "status", "extendedResourceClaimStatus", default={})
    for field in ("initContainers", "containers"):
        for container in at(pod, "spec", field):
            used = {
                Use(name, entry.get("request") or "")
                for entry in at(container, "resources", "claims")
                if (name := names.get(entry["name"])) is not None
            }
            used |= {
                Use(made["resourceClaimName"], mapping.get("requestName") or "")
                for mapping in at(made, "requestMappings")
                if mapping["containerName"] == container["name"]
            }
            yield container["name"], frozenset(used)


def has_several_containers(pod: Mapping[str, Any]) -> bool:
    """True of a pod with more than one container, those that run at its start included."""
    return len(at(pod, "spec", "initContainers")) + len(at(pod, "spec", "containers")) > 1


def find_crowd(uses: Iterable[Use], by_mps: Mapping[str, Mapping[str, bool]]) -> tuple[Use, ...]:
    """Requests of a container that is a client of MPS and has more than that device, else empty.

    ``by_mps`` tells of each request of each claim that counts whether its device is shared so; the
    requests of which it is come first.
    """
    used = {
        Use(each.claim, request)
        for each in uses
        for request in by_mps.get(each.claim, ())
        if each.request in ("", request)
    }
    ordered = sorted(used, key=lambda use: (not by_mps[use.claim][use.request], use))
    if len(ordered) < 2 or not by_mps[ordered[0].claim][ordered[0].request]:  # noqa: PLR2004
        return ()
    return tuple(ordered)


def crowded(container: str, uses: Iterable[Use]) -> str:
    """Fault of a container that uses a device shared by MPS beside others."""
    uses = sorted(uses)
    requests = Counter(use.claim for use in uses)
    names = ", ".join(
        use.claim if requests[use.claim] == 1 else f"{use.claim}/{use.request}"
        for use in uses[:_NAMED]
    )
    more = f" and {len(uses) - _NAMED} more" if len(uses) > _NAMED else ""
    return (
        f"container {container!r} uses claims {names}{more}, of which at least one has "
        "sharing.strategy 'MPS': a container is a client of one MPS daemon, which serves one "
        "device; name one of these claims in its resources.claims, with its request where it has "
        "several, the others in other containers"
    )
