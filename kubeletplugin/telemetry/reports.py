"""Events of this node and of its claims, and the fields of log lines about them."""

from __future__ import annotations

import logging
from collections.abc import Callable

from dra.claims.claims import Consumer
from dra.claims.reasons import NodeReason
from dra.common.resources import NODES, PODS, RESOURCE_CLAIMS, Obj, Resource
from dra.gpu.inventory import ClaimRef
from dra.kube.events import EventSink

_MOST_PODS = 8
"""Pods of a claim that get an event."""
_log = logging.getLogger(__name__)


class Reports:
    """Sends events of this node, its claims and their pods.

    ``users``: returns the pods that have a claim, by its UID, as far as they are known.
    """

    def __init__(
        self,
        sink: EventSink,
        node_name: str,
        *,
        users: Callable[[str], tuple[Consumer, ...]] = lambda _: (),
    ) -> None:
        self._sink = sink
        self._users = users
        self._unwritable = ""
        self.node_name = node_name
        # Kubelet's own events name a Node by its name in place of a UID.
        self._node = _regarding(NODES, node_name, node_name)

    def report_node(self, reason: NodeReason, message: str, *, warning: bool = False) -> None:
        """Send an event of this node."""
        self._sink.emit(self._node, reason.value, message, warning=warning)

    def report_claim(
        self, ref: ClaimRef, reason: NodeReason, message: str, *, warning: bool = False
    ) -> None:
        """Send an event of a claim."""
        claim = _regarding(RESOURCE_CLAIMS, ref.name, ref.uid, ref.namespace)
        self._sink.emit(claim, reason.value, message, warning=warning)

    def report_device(
        self, ref: ClaimRef, reason: NodeReason, message: str, *, warning: bool = False
    ) -> None:
        """Send an event of a claim that concerns its pods, and the same of the first of these."""
        self.report_claim(ref, reason, message, warning=warning)
        for user in self._users(ref.uid)[:_MOST_PODS]:
            pod = _regarding(PODS, user.name, user.uid, ref.namespace)
            self._sink.emit(pod, reason.value, message, warning=warning)

    def report_journal(self, failure: str) -> None:
        """Send an event when writes of the journal begin to fail or succeed again. For one thread.

        ``failure``: text on why the last write failed; empty if it succeeded.
        """
        before, self._unwritable = self._unwritable, failure
        if failure == before:
            return
        if failure:
            _log.error("%s", failure)
            text = f"{failure}; until then no claim can be prepared"
            self.report_node(NodeReason.UNWRITABLE, text, warning=True)
        else:
            self.report_node(NodeReason.WRITABLE, "the journal can be written again")


def _regarding(resource: Resource, name: str, uid: str, namespace: str = "") -> Obj:
    metadata = {"name": name, "uid": uid} | ({"namespace": namespace} if namespace else {})
    return {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata}
