"""Parts that share a device among several processes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from kubeletplugin.claims.prepare.specs import daemon_nodes
from kubeletplugin.claims.sharing.mps.daemonpod import Site
from kubeletplugin.claims.sharing.mps.daemons import MpsDaemons
from kubeletplugin.claims.sharing.sharing import DeviceSharing
from kubeletplugin.claims.sharing.timeslices import TimeSlices
from kubeletplugin.daemon.common import Common
from kubeletplugin.gpus.hardware import Hardware
from kubeletplugin.host.driverfiles import DriverFiles
from kubeletplugin.publishing.mignode_publisher import node_owner


def build_sharing(
    common: Common, hardware: Hardware, files: Callable[[], DriverFiles]
) -> tuple[DeviceSharing, MpsDaemons]:
    """Build the parts; ``files`` are the driver's."""
    options = common.options

    def site() -> Site:
        return Site(
            driver=options.driver_name,
            namespace=options.mps_namespace,
            image=options.mps_image,
            pull_secrets=options.mps_pull_secrets,
            node=options.node_name,
            owner=node_owner(common.api, options.node_name),
        )

    daemons = MpsDaemons(
        common.api,
        site=site if options.mps_image else None,
        namespace=options.mps_namespace,
        folder=options.roots.state / "mps",
        roots=options.roots,
        nodes=partial(daemon_nodes, hardware, options.roots),
        files=files,
        boot_id=hardware.boot_id,
        node=options.node_name,
    )
    sharing = DeviceSharing(common.journal, TimeSlices(files), daemons, boot_id=hardware.boot_id)
    return sharing, daemons
