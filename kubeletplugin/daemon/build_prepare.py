"""Parts of the program that prepare a claim, and undo what fails."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial

from dra.common.resources import Obj
from dra.gpu.inventory import ClaimRef
from kubeletplugin.claims.eager.reservations import Reservations
from kubeletplugin.claims.eager.watched_claims import WatchedClaims
from kubeletplugin.claims.prepare.lookup import read_devices, read_expected_devices
from kubeletplugin.claims.prepare.occupancy import Occupancy
from kubeletplugin.claims.prepare.prepare import Preparer
from kubeletplugin.claims.prepare.removal import Removal
from kubeletplugin.claims.prepare.rollback import Rollback
from kubeletplugin.claims.prepare.slices import Slices
from kubeletplugin.claims.prepare.specs import Specs
from kubeletplugin.claims.sharing.containers import ContainerCheck
from kubeletplugin.claims.sharing.hami_core import is_held
from kubeletplugin.claims.sharing.sharing import DeviceSharing
from kubeletplugin.daemon.build_gpus import GpuParts
from kubeletplugin.daemon.build_sharing import build_sharing
from kubeletplugin.daemon.common import Common
from kubeletplugin.host.driverfiles import DriverSearch
from kubeletplugin.host.processes import holders


@dataclass(frozen=True, slots=True)
class PrepareParts:
    """The transaction of Prepare, and its rollback."""

    removal: Removal
    specs: Specs
    rollback: Rollback
    preparer: Preparer
    sharing: DeviceSharing


def build_prepare(  # noqa: PLR0913 - what it works with
    common: Common,
    gpus: GpuParts,
    *,
    reservations: Reservations,
    watched: WatchedClaims,
    know: Callable[[Obj], None],
    doubt: Callable[[ClaimRef], None],
) -> PrepareParts:
    """Build the parts; ``know`` gets each claim as it was read, ``doubt`` those in the way."""
    options, journal, hardware = common.options, common.journal, gpus.hardware
    session, identity = hardware.session, hardware.identity
    removal = Removal(session, journal, identity)

    def who_holds(uuid: str, pids: Collection[int]) -> str:
        unit = hardware.unit(uuid)
        return "" if unit is None else holders(options.roots, unit.known.card.minor, pids)

    occupancy = Occupancy(session, journal, removal, identity, holders=who_holds, doubt=doubt)
    slices = Slices(session, journal, occupancy, removal, identity, boot_id=hardware.boot_id)
    search = DriverSearch(
        options.roots, directories=options.library_directories, hook=options.cdi_hook
    )
    sharing, daemons = build_sharing(common, hardware, lambda: search.find(hardware.driver_version))
    specs = Specs(
        options.driver_name,
        hardware,
        roots=options.roots,
        search=search,
        of_client=daemons.edits,
    )

    rollback = Rollback(
        hardware,
        journal,
        removal,
        specs,
        sharing=sharing,
        look=gpus.looks.ask,
        reports=common.reports,
        holders=who_holds,
    )
    read_allocated = partial(
        read_expected_devices,
        common.api,
        driver=options.driver_name,
        pool=options.pool,
        seen=common.telemetry.metrics.claim_seen,
        watched=watched.take,
    )
    containers = ContainerCheck(
        common.api,
        journal,
        driver=options.driver_name,
        node=options.node_name,
        limited=partial(is_held, hardware),
    )
    preparer = Preparer(
        hardware,
        journal,
        slices,
        specs,
        rollback,
        sharing=sharing,
        look=gpus.looks.ask,
        read_devices=partial(
            read_devices,
            common.api,
            driver=options.driver_name,
            pool=options.pool,
            seen=common.telemetry.metrics.claim_seen,
            know=know,
            check=containers.check,
        ),
        read_expected=lambda ref: reservations.devices(ref) or read_allocated(ref),
    )
    return PrepareParts(removal, specs, rollback, preparer, sharing)
