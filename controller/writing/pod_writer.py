"""Writer of the controller's changes to pods; no other module makes any."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from controller.writing.leader_requests import LeaderRequests, is_still
from dra.common.resources import PODS, Obj
from dra.gpu.names import prepare_retry
from dra.kube.errors import ConflictError, InvalidError
from dra.kube.timing import rfc3339
from dra.pods.pods import Pod

_NOMINATED = "/status/nominatedNodeName"


class PodWriter:
    """Writes pods for one driver, by ``requests``, whose errors go through.

    ``evicts``: it may evict pods.
    """

    def __init__(
        self,
        requests: LeaderRequests,
        *,
        driver: str,
        now: Callable[[], datetime],
        evicts: bool,
    ) -> None:
        self._requests = requests
        self._driver = driver
        self._now = now
        self.evicts = evicts

    def lift_gate(self, pod: Pod, gate: str) -> Obj:
        """Remove a scheduling gate.

        Raises:
            ConflictError: the gates, or the pod, are no longer those that were seen.
        """
        index = pod.gates.index(gate)
        path = f"/spec/schedulingGates/{index}"
        steps = [is_still(f"{path}/name", gate), {"op": "remove", "path": path}]
        return self._patch(pod, steps)

    def nominate(self, pod: Pod, node: str) -> Obj:
        """Say of a pod that room is to be made for it on ``node``.

        Raises:
            ConflictError: it is bound or nominated already, or the pod is another.
        """
        steps = [
            is_still("/spec/nodeName", None),
            is_still(_NOMINATED, None),
            {"op": "add", "path": _NOMINATED, "value": node},
        ]
        return self._patch(pod, steps, subresource="status")

    def take_back_nomination(self, pod: Pod, node: str) -> Obj:
        """Say no more that ``pod`` is nominated for ``node``.

        Raises:
            ConflictError: it is not, or the pod is another.
        """
        steps = [is_still(_NOMINATED, node), {"op": "remove", "path": _NOMINATED}]
        return self._patch(pod, steps, subresource="status")

    def request_prepare(self, pod: Pod, mark: str) -> Obj:
        """Have kubelet ask at once for what a pod still lacks; ``mark`` says on what occasion.

        After a failed NodePrepareResources kubelet waits for 60 to 90 s (completeWork in its
        pod_workers.go, 1.36), but for a pod whose annotations change it asks at once
        (podsDifferSemantically in its config/config.go).
        """
        annotations = {prepare_retry(self._driver): mark}
        return self._requests.patch(
            PODS,
            pod.key[1],
            {"metadata": {"uid": pod.uid, "annotations": annotations}},
            namespace=pod.key[0],
        )

    def evict(self, pod: Pod) -> Obj:
        """Evict a pod by the Eviction API.

        Raises:
            UnavailableError: a PodDisruptionBudget forbids it now (429), or no answer.
        """
        namespace, name = pod.key
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": namespace},
            "deleteOptions": {"preconditions": {"uid": pod.uid}},
        }
        return self._requests.create(PODS, body, subresource="eviction")

    def set_condition(
        self, pod: Pod, condition: str, *, status: str, reason: str, message: str
    ) -> Obj:
        """Set a condition of a pod, and leave its others alone."""
        found = (pod.obj.get("status") or {}).get("conditions") or ()
        before: Obj = next((c for c in found if c["type"] == condition), {})
        since = before.get("lastTransitionTime") if before.get("status") == status else None
        entry = {
            "type": condition,
            "status": status,
            "reason": reason,
            "message": message,
            "lastTransitionTime": since or rfc3339(self._now()),
        }
        return self._requests.patch(
            PODS,
            pod.key[1],
            {"metadata": {"uid": pod.uid}, "status": {"conditions": [entry]}},
            namespace=pod.key[0],
            subresource="status",
            content="strategic",
        )

    def _patch(self, pod: Pod, steps: list[Obj], *, subresource: str = "") -> Obj:
        try:
            return self._requests.patch(
                PODS,
                pod.key[1],
                [is_still("/metadata/uid", pod.uid), *steps],
                namespace=pod.key[0],
                subresource=subresource,
                content="json",
            )
        except InvalidError as error:  # what a JSON patch is answered whose test fails
            raise ConflictError(f"pod {pod} has changed: {error.message}") from error
