"""Findings of an explanation: their reasons, and the remedy for each reason in a sentence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from cli.site import GpuView, remedy_of
from dra.allocator.explain.answers import AnswerReason
from dra.claims.conditions import PREPARE_FAILED
from dra.claims.reasons import NodeReason, Reason
from dra.claims.remedies import remedy
from dra.common.program import page
from dra.pods.nodefit import MisfitReason


class Progress(StrEnum):
    """Progress of a pod or claim on its way to slices."""

    RUNNING = "Running"
    ALLOCATED = "Allocated"
    STARTING = "Starting"
    WAITING = "Waiting"
    ENDING = "Terminating"
    ENDED = "Ended"


class Why(StrEnum):
    """Reasons of findings and nodes, besides those of the controller, of answers and node fit."""

    NO_MIGNODE = "NoMigNode"
    NOT_LEADING = "ControllerNotRunning"
    PLUGIN_GONE = "PluginNotRunning"
    GATED = "SchedulingGated"
    CLAIM_MISSING = "ClaimMissing"
    TEMPLATE_MISSING = "TemplateMissing"
    CLAIM_NOT_MADE = "ClaimNotCreated"
    CLAIM_LOST = "ClaimDeleted"
    CLAIM_GOING = "ClaimTerminating"
    NOT_THERE = "ClaimElsewhere"
    OTHER_OWNER = "ClaimOfAnotherPod"
    NOT_OURS = "NotThisDriver"
    NO_CLAIMS = "NoClaims"
    BY_LIMITS = "AskedByLimits"
    NO_CONSUMER = "NoPod"
    SOON = "AboutToBeAllocated"
    PREEMPTS = "PreemptsOthers"
    NOT_SCHEDULED = "NotScheduled"
    PREPARING = "Preparing"
    ENDING = "PodTerminating"
    UNREAD = "NotAllowedToRead"


@dataclass(frozen=True, slots=True)
class Finding:
    """An obstacle, with its remedy."""

    reason: str
    message: str
    remedy: str = ""


def finding(reason: str, message: str, view: GpuView | None = None) -> Finding:
    """The finding for ``reason``, with the remedy that is known for it; ``view``: of its GPU."""
    known = NodeReason.IN_USE if reason == AnswerReason.RECLAIMING else reason
    text = remedy(known) if view is None else remedy_of(view, known)
    return Finding(str(reason), message, REMEDIES.get(reason) or text)


REMEDIES: Mapping[str, str] = {
    AnswerReason.NO_ROOM: "it is served when one of the claims in the way ends; kubectl mig "
    "profiles shows what else could be had now, if anything",
    Reason.WAITING_FOR_GANG: "its pods are served together: create those that are missing, or "
    "correct what says how many there are: " + page("gangs.md#if-it-waits"),
    Reason.QUOTA: "end pods of the namespace that hold such devices, or have the administrator "
    "raise the annotation of the class",
    AnswerReason.NO_ROOM_TOGETHER: "all devices of a pod are on one node: ask for fewer or smaller "
    "ones, or put them into several pods",
    AnswerReason.HELD_WHOLE: "it is served when the claim that holds the whole GPU ends",
    Why.PLUGIN_GONE: "look at the plugin's DaemonSet and its pod on that node (kubectl mig doctor)",
    Why.NO_MIGNODE: "see that the plugin runs on the GPU nodes (kubectl mig doctor)",
    Why.NOT_LEADING: "see that the controller's Deployment runs (kubectl mig doctor)",
    MisfitReason.BY_SCHEDULER: "create the pod with the scheduling gate mig.dra.dev/allocation, or "
    "ask kube-scheduler why (kubectl describe pod)",
    Why.CLAIM_MISSING: "create the ResourceClaim, or correct its name in the pod",
    Why.TEMPLATE_MISSING: "create the ResourceClaimTemplate, or correct its name in the pod",
    Why.CLAIM_NOT_MADE: "kube-controller-manager makes claims from templates: its event says why "
    "it does not; a quota has to be raised, or something that counts in it deleted",
    Why.CLAIM_GOING: "wait until it is gone; what holds it are its finalizers and the pods that "
    "use it (kubectl mig release says more, and takes our finalizer off)",
    Why.OTHER_OWNER: "name the claim that belongs to this pod",
    Why.BY_LIMITS: "ask by a resource claim, which is served everywhere (kubectl mig convert "
    "prints the pod with one), or create the pod anew in a namespace with label "
    "mig.dra.dev/limits=claims, where the chart's admission policy (podLimits, from Kubernetes "
    "1.36 on) makes claims of limits if it is there (kubectl get mutatingadmissionpolicies); a "
    "profile is served too where a node's plugin runs with --allocator=scheduler",
    Why.UNREAD: "ask somebody who may read nodes, MigNodes, classes and all claims",
    Why.GATED: "whoever set the gate has to lift it",
    Why.NO_CONSUMER: "create a pod that uses it: claims are allocated for pods",
    Why.PREEMPTS: "nothing, where those pods may end; else give the pod a PriorityClass with "
    "preemptionPolicy: Never, or ask for less",
    Why.NOT_SCHEDULED: "the slices are there; what the scheduler misses is something else",
    Why.NOT_THERE: "let the pod go where its claim is, or give it a claim of its own; a claim "
    "moves once no pod uses it",
    Why.CLAIM_LOST: "kube-controller-manager makes it anew from its template; if it does not, "
    "delete the pod",
    Why.PREPARING: "kubelet tries again after 60 to 90 s; if it goes on, look at the log of the "
    "plugin on that node",
    Why.ENDING: "wait for kubelet; if the node is gone for good, delete the Node",
    Reason.NO_SUCH_CLASS: "correct deviceClassName: neither a claim nor a template can be "
    "changed, so delete it and the pod, and create them anew",
    Reason.NO_SUCH_PROFILE: "ask for a profile that exists (kubectl mig profiles)",
    Reason.BAD_SELECTOR: "correct the CEL expression",
    Reason.COSTLY_SELECTOR: "write the CEL expression simpler: compare attributes as they are",
    Reason.SEARCH_GIVEN_UP: "make the requests more alike (by count), name one profile in each, or "
    "put those that need not be on one node into claims of other pods",
    Reason.EVALUATING: "wait, or have claims made from one template",
    Reason.BAD_CONFIG: "correct the configuration (kubectl mig lint checks it offline)",
    Reason.VOLUME_CLAIM: "create the claim, or see why it has no volume (kubectl describe pvc); "
    "nothing is allocated before",
    Reason.OTHER_CLAIM: "see why that claim finds nothing (kubectl describe resourceclaim); ours "
    "is tried again after a pause, and at once when that is allocated",
    Reason.MIXED: "put devices of different drivers into separate claims",
    Reason.REFUSED: "see that the controller's RBAC is that of the chart",
    PREPARE_FAILED: "delete the pod, so that its claim is placed elsewhere, and see to the node",
    MisfitReason.NO_NODE: "bring the node back, or delete the pod",
    MisfitReason.NOT_READY: "see why the node is not ready (kubectl describe node)",
    MisfitReason.UNSCHEDULABLE: "kubectl uncordon, when the work on it is done",
    MisfitReason.HOST_USERS: "take 'hostUsers: false' out of the pod, or give the node's plugin "
    "CAP_MKNOD and a host's /dev that can be written to, and restart the plugin",
    MisfitReason.SHARING: "enable it there (chart: mps.enabled), or change the claim's config",
    MisfitReason.TAINTED: "give the pod a toleration, or remove the taint",
    MisfitReason.SELECTOR: "correct the pod's nodeSelector or the node's labels",
    MisfitReason.AFFINITY: "correct the pod's node affinity or the node's labels",
    MisfitReason.VOLUME: "see where the volumes are (kubectl describe pv), or free GPUs there",
    MisfitReason.HOST_PORT: "end the pod that has the port there, or do without host ports",
    MisfitReason.POD_AFFINITY: "start the pod that is sought, or relax the pod's affinity",
    MisfitReason.POD_ANTI_AFFINITY: "prefer apartness instead of requiring it, or add nodes",
    MisfitReason.SHUNNED: "end the pod that requires to be alone, or add nodes",
    MisfitReason.SPREAD: "raise maxSkew, use ScheduleAnyway, or add nodes to the emptier domains",
    MisfitReason.RESOURCES: "ask for less, or make room on the node",
}
