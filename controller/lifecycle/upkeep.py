"""Upkeep of pods that are allocated, until they run or give up what they have."""

from __future__ import annotations

from dataclasses import dataclass

from controller.lifecycle.failures.evictions import Evictions
from controller.lifecycle.failures.prepare_retries import PrepareRetries
from controller.lifecycle.hindered import Hindered
from controller.lifecycle.lost_nodes import LostNodes
from controller.lifecycle.nominations import Nominations
from controller.lifecycle.reserving.cut_first import CutFirst


@dataclass(frozen=True, slots=True)
class Upkeep:
    """Parts that each look after one thing that may happen to such a pod."""

    prepare_retries: PrepareRetries
    evictions: Evictions
    cut_first: CutFirst
    lost_nodes: LostNodes
    hindered: Hindered
    nominations: Nominations

    def forget(self, pod_uid: str) -> None:
        """The pod is gone."""
        self.prepare_retries.forget(pod_uid)
        self.evictions.forget(pod_uid)
        self.cut_first.end(pod_uid)
        self.lost_nodes.forget(pod_uid)
        self.hindered.forget(pod_uid)
        self.nominations.forget(pod_uid)
