"""Events of this node and of its claims."""

from __future__ import annotations

from dra.claims.reasons import NodeReason
from dra.common.resources import NODES, RESOURCE_CLAIMS
from dra.gpu.inventory import ClaimRef
from dra.kube.events import EventSink


class Reports:
    """Sends events of this node and of its claims."""

    def __init__(self, sink: EventSink, node_name: str) -> None:
        self._sink = sink
        self.node_name = node_name
        # Kubelet's own events name a Node by its name in place of a UID.
        self._node = {
            "apiVersion": NODES.api_version,
            "kind": NODES.kind,
            "metadata": {"name": node_name, "uid": node_name},
        }

    def report_node(self, reason: NodeReason, message: str, *, warning: bool = False) -> None:
        """Send an event of this node."""
        self._sink.emit(self._node, reason.value, message, warning=warning)

    def report_claim(
        self, ref: ClaimRef, reason: NodeReason, message: str, *, warning: bool = False
    ) -> None:
        """Send an event of a claim."""
        regarding = {
            "apiVersion": RESOURCE_CLAIMS.api_version,
            "kind": RESOURCE_CLAIMS.kind,
            "metadata": {"name": ref.name, "namespace": ref.namespace, "uid": ref.uid},
        }
        self._sink.emit(regarding, reason.value, message, warning=warning)
