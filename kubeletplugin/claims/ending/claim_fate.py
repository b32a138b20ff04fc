"""State of a claim in the API server, as far as the API server can be asked."""

from __future__ import annotations

import logging
from collections.abc import Callable
from enum import Enum, auto

from dra.claims.claims import Claim, read_claim
from dra.claims.trimming import AllocatedClaim
from dra.common.resources import RESOURCE_CLAIMS
from dra.gpu.inventory import ClaimRef
from dra.kube.client import KubeApi
from dra.kube.errors import KubeError, ObjectNotFoundError

_log = logging.getLogger(__name__)


class ClaimFate(Enum):
    """``GONE``: it does not exist, or another has its name. ``FREED``: it has no allocation.

    ``ENDED``: it is being deleted and no pod has reserved it, so none ever will again. ``HERE``:
    devices of this node are allocated to it and pods have reserved it. ``IDLE``: anything else
    that it may be. ``UNKNOWN``: there was no answer, which is a sign of nothing.
    """

    GONE = auto()
    FREED = auto()
    ENDED = auto()
    HERE = auto()
    IDLE = auto()
    UNKNOWN = auto()


def claim_fate(
    api: KubeApi,
    ref: ClaimRef,
    *,
    driver: str,
    pool: str,
    seen: Callable[[Claim], None] = lambda _: None,
) -> ClaimFate:
    """Ask for one claim; ``seen`` gets what is found. Never raises KubeError."""
    try:
        found = api.get_as(AllocatedClaim, RESOURCE_CLAIMS, ref.name, namespace=ref.namespace)
    except KubeError as error:
        if is_gone(error, ref):
            return ClaimFate.GONE
        _log.debug("claim %s: %s", ref, error)
        return ClaimFate.UNKNOWN
    claim = read_claim(found.as_object(driver))
    seen(claim)
    if claim.ref.uid != ref.uid:
        return ClaimFate.GONE
    if claim.allocation is None:
        return ClaimFate.FREED
    if claim.deleting and not claim.reserved_for:
        return ClaimFate.ENDED
    here = any(d.pool == pool for d in claim.allocation.of_driver(driver))
    return ClaimFate.HERE if here and claim.reserved_for else ClaimFate.IDLE


def is_gone(error: KubeError, ref: ClaimRef) -> bool:
    """True if an answer says that there is no claim of that name.

    A missing resource type (an API server still starting) is 404 too, without a name.
    """
    return isinstance(error, ObjectNotFoundError) and error.details.get("name") == ref.name
