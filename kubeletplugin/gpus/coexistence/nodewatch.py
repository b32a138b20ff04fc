"""Other managers of a node's GPUs: watched by its Node and by NVIDIA's ResourceSlices."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from dra.claims.reasons import NodeReason
from dra.common.resources import NODES, RESOURCE_SLICES, Obj
from dra.gpu.names import NVIDIA_DRIVER
from dra.kube.client import KubeApi
from dra.kube.errors import KubeError
from dra.kube.reflector import Change, Reflector
from dra.resourceslices.nvidiadra import dra_driver, summary
from kubeletplugin.gpus.coexistence.node_choice import NodeChoice
from kubeletplugin.gpus.coexistence.other_managers import Conflict, conflict
from kubeletplugin.gpus.coexistence.pausing import Pauses
from kubeletplugin.telemetry.reports import Reports

_log = logging.getLogger(__name__)


class NodeWatch:
    """Tells when another manager appears or goes; ``on_conflict`` gets it, or None.

    With ``ignore`` nobody counts as another manager. ``on_namesake`` is called where ``driver``,
    this program's name, is NVIDIA's, and NVIDIA's own driver publishes under it here; ``ignore``
    changes nothing of that. ``pauses`` and ``choice`` see the Node as well. ``runs_mig_manager``
    says whether mig-manager's program runs on this node now.
    """

    def __init__(  # noqa: PLR0913 - what it looks for, and whom it tells
        self,
        api: KubeApi,
        node_name: str,
        *,
        driver: str,
        on_conflict: Callable[[Conflict | None], None],
        on_namesake: Callable[[], None],
        pauses: Pauses,
        choice: NodeChoice,
        runs_mig_manager: Callable[[], bool],
        ignore: bool = False,
        reports: Reports,
    ) -> None:
        self._api = api
        self._node_name = node_name
        self._on_conflict = on_conflict
        self.pauses = pauses
        self._choice = choice
        self._runs_mig_manager = runs_mig_manager
        self._ignore = ignore
        self._reports = reports
        self._lock = threading.Lock()
        self._current: Conflict | None = None
        self._node: Obj = {}
        self._listed: list[Obj] = []
        self._nodes = Reflector(
            api,
            NODES,
            field_selector=f"metadata.name={node_name}",
            on_event=self._changed,
        )
        self._of_nvidia = f"spec.nodeName={node_name},spec.driver={NVIDIA_DRIVER}"
        self._slices = Reflector(
            api,
            RESOURCE_SLICES,
            field_selector=self._of_nvidia,
            keep=summary,
            on_event=lambda _: self._judge(),
            on_listed=self._judge,
        )
        self._on_namesake = on_namesake
        self._named_as_nvidias = driver == NVIDIA_DRIVER
        self._watches_slices = self._named_as_nvidias or not ignore

    def start(self) -> None:
        """Begin to watch."""
        self._nodes.start()
        if self._watches_slices:
            self._slices.start()

    def stop(self) -> None:
        """End the watches."""
        self._nodes.stop()
        self._slices.stop()

    def look(self) -> None:
        """Look once, now; without an answer everything stays as it is."""
        try:
            node = self._api.get(NODES, self._node_name)
            if self._watches_slices:
                self._listed = self._api.list(
                    RESOURCE_SLICES, field_selector=self._of_nvidia, keep=summary
                ).items
        except KubeError as error:
            _log.warning("node %s: %s", self._node_name, error)
        else:
            self._judge(node)

    def look_again(self) -> None:
        """Decide anew while mig-manager is at work: no watch tells that its program has ended."""
        current = self._current
        if current is not None and current.reason is NodeReason.MIG_MANAGER:
            self._judge()

    def _changed(self, change: Change) -> None:
        if change.new is not None:
            self._judge(change.new)

    def _judge(self, node: Obj | None = None) -> None:
        """Decide anew, with the Node as it is now if that has changed."""
        if node is not None:
            self.pauses.see(node)
            self._choice.see(node)
        with self._lock:
            if node is not None:
                self._node = node
            slices = self._slices.store.list() if self._slices.synced else self._listed
            if self._named_as_nvidias and dra_driver({}, slices) is not None:
                self._on_namesake()
            ours = self._choice.configured
            found = None
            if not self._ignore:
                found = conflict(
                    self._node,
                    slices,
                    makes_layouts=ours,
                    runs_mig_manager=self._runs_mig_manager,
                )
            if found == self._current:
                return
            self._current = found
            self._on_conflict(found)
        if found is None:
            _log.info("no other program manages this node's GPUs any more")
            return
        _log.warning("GPUs are unavailable: %s", found.problem)
        self._reports.report_node(
            found.reason, f"GPUs are unavailable: {found.problem}", warning=True
        )
