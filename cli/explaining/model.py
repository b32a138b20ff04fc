"""Explanations as values, for people and for programs alike."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from cli.site.occupancy import Slot
from dra.allocator.explain.answers import NodeAnswer
from dra.gpu.inventory import ClaimRef


class Progress(StrEnum):
    """Progress of a pod or claim on its way to slices."""

    RUNNING = "Running"
    ALLOCATED = "Allocated"
    STARTING = "Starting"
    WAITING = "Waiting"
    ENDED = "Ended"


class Why(StrEnum):
    """Reasons of findings and nodes beside those of the controller, its answers, and node fit."""

    BY_SCHEDULER = "AllocatedByScheduler"
    NO_MIGNODE = "NoMigNode"
    NOT_LEADING = "ControllerNotRunning"
    PLUGIN_GONE = "PluginNotRunning"
    GATED = "SchedulingGated"
    CLAIM_MISSING = "ClaimMissing"
    TEMPLATE_MISSING = "TemplateMissing"
    CLAIM_NOT_MADE = "ClaimNotCreated"
    CLAIM_GOING = "ClaimTerminating"
    OTHER_OWNER = "ClaimOfAnotherPod"
    NOT_OURS = "NotThisDriver"
    NO_CLAIMS = "NoClaims"
    BY_LIMITS = "AskedByLimits"
    NO_CONSUMER = "NoPod"
    SOON = "AboutToBeAllocated"
    PREEMPTS = "PreemptsOthers"
    MADE_FIRST = "MadeFirst"
    NOT_SCHEDULED = "NotScheduled"
    PREPARING = "Preparing"
    UNREAD = "NotAllowedToRead"


@dataclass(frozen=True, slots=True)
class Finding:
    """Obstacle, with its remedy."""

    reason: str
    message: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Seat:
    """A device that a claim has: where it is and what became of it there."""

    claim: ClaimRef
    node: str
    device: str
    slot: Slot | None
    ready: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class Told:
    """The latest event of this driver, kubelet or the scheduler about the object."""

    source: str
    reason: str
    message: str
    at: str


@dataclass(frozen=True, slots=True)
class ObjectExplanation:
    """Explanation of one object. The first of the ``findings``, by weight, is the blocker."""

    kind: str
    namespace: str
    name: str
    state: Progress
    findings: tuple[Finding, ...] = ()
    seats: tuple[Seat, ...] = ()
    nodes: Mapping[str, NodeAnswer] = field(default_factory=dict)
    told: tuple[Told, ...] = ()
    wanted: tuple[str, ...] = ()
