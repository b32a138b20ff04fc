"""Parts that share a device among several processes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from kubeletplugin.claims.sharing.mps import MpsDaemons
from kubeletplugin.claims.sharing.mps_pod import Site
from kubeletplugin.claims.sharing.sharing import DeviceSharing, TimeSlices
from kubeletplugin.claims.specs import daemon_nodes
from kubeletplugin.common import Common
from kubeletplugin.gpus.hardware import Hardware
from kubeletplugin.host.driverfiles import DriverFiles


def build_sharing(
    common: Common, hardware: Hardware, files: Callable[[], DriverFiles]
) -> tuple[DeviceSharing, MpsDaemons]:
    """Build the parts; ``files`` are the driver's."""
    options = common.options

    site = Site(
        driver=options.driver_name,
        namespace=options.mps_namespace,
        image=options.mps_image,
        pull_secrets=options.mps_pull_secrets,
        node=options.node_name,
    )
    daemons = MpsDaemons(
        common.api,
        site,
        roots=options.roots,
        nodes=partial(daemon_nodes, hardware, options.roots),
        files=files,
        boot_id=hardware.boot_id,
    )
    sharing = DeviceSharing(common.journal, TimeSlices(files), daemons, boot_id=hardware.boot_id)
    return sharing, daemons
