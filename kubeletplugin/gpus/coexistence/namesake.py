"""NVIDIA's own DRA driver under the name that this one is to have: the node cannot have both.

Kubelet calls the plugin that registered last, whoever made the claim's slices, and each would take
the other's ResourceSlices for leftovers of its own.
"""

from __future__ import annotations

import logging

from dra.common.resources import RESOURCE_SLICES
from dra.gpu.names import DEFAULT_DRIVER, NVIDIA_DRIVER
from dra.kube.client import KubeApi
from dra.kube.errors import KubeError
from dra.resourceslices.nvidiadra import DEPLOY_LABEL, dra_driver, summary
from kubeletplugin.errors import HostError
from kubeletplugin.options import Options
from kubeletplugin.sockets import listeners

_log = logging.getLogger(__name__)


def refuse_namesake(options: Options, api: KubeApi) -> None:
    """Refuse to serve under NVIDIA's name where its own driver does; others are not looked for.

    For the owner of the state directory before it has sockets. An API server that does not answer
    hinders nobody: :class:`NodeWatch` looks again.

    Raises:
        HostError: it is here; says where that was seen, and the ways out.
    """
    if options.driver_name != NVIDIA_DRIVER:
        return
    heard = listeners(options)
    seen = f"somebody listens on {heard[0]}" if heard else _published(options, api)
    if seen:
        raise HostError(
            f"NVIDIA's own DRA driver serves this node as {NVIDIA_DRIVER} ({seen}), and two "
            "plugins of one name cannot: keep it off this node "
            f"(label {DEPLOY_LABEL}=false where the GPU operator installs it, the node affinity of "
            f"its chart otherwise), or start this one with --driver-name={DEFAULT_DRIVER}; kubelet "
            "removes its ResourceSlices half a minute after its end"
        )


def _published(options: Options, api: KubeApi) -> str:
    selector = f"spec.nodeName={options.node_name},spec.driver={NVIDIA_DRIVER}"
    try:
        found = api.list(RESOURCE_SLICES, field_selector=selector, keep=summary).items
    except KubeError as error:
        _log.warning("ResourceSlices of %s cannot be looked for: %s", NVIDIA_DRIVER, error)
        return ""
    theirs = dra_driver({}, found)
    return theirs.sign if theirs is not None else ""
