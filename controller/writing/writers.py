"""Writers of one controller, by what they write."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from controller.writing.claim_writer import ClaimWriter
from controller.writing.leader_requests import LeaderRequests, WriteApi
from controller.writing.object_writer import ObjectWriter
from controller.writing.pod_writer import PodWriter
from dra.claims.claims import field_manager


@dataclass(frozen=True, slots=True)
class Writers:
    """All that writes to the API server, besides events."""

    claims: ClaimWriter
    pods: PodWriter
    objects: ObjectWriter


def make_writers(  # noqa: PLR0913 - what they write, and when
    api: WriteApi,
    *,
    driver: str,
    finalizer: str,
    now: Callable[[], datetime],
    leads: Callable[[], bool],
    labels_nodes: bool = True,
    evicts: bool = False,
) -> Writers:
    """The writers for ``driver``, which write as long as it ``leads``.

    ``now`` gives the time of day; for the others see ``ClaimWriter`` and ``PodWriter``.
    """
    requests = LeaderRequests(api, manager=field_manager(driver), leads=leads)
    return Writers(
        ClaimWriter(
            requests, driver=driver, finalizer=finalizer, now=now, labels_nodes=labels_nodes
        ),
        PodWriter(requests, driver=driver, now=now, evicts=evicts),
        ObjectWriter(requests, driver=driver),
    )
