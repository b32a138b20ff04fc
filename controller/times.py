"""Durations of the controller in seconds, in the order in which a claim meets them.

A pair is the first and the longest pause before something is tried again; pauses double.
"""

from __future__ import annotations

from dra.kube.timing import Backoff

HOUR = 3600.0

# -- Leadership

# Longest request to the API server. Less than the margin between losing a Lease and somebody else
# getting it (5 s), so that no former leader waits for a write when the next one starts.
REQUEST = 4.0

# From the start of leadership to the warning that a resource cannot be listed, and between two such
# warnings.
MIRRORS_MISSING_TOLD = 10.0

# A list waits for the deciding thread to take what was listed so far, so that memory is bounded.
INBOX_FULL = 5.0

# Claims of living pods that cannot be fenced (a webhook refuses it, say) delay the first decision,
# all together.
FENCE = 10.0

# The loop waits for changes at most so long when nothing is due.
IDLE = 60.0

# A leader that has begun no turn of its loop for this long counts as dead. This is far longer than
# any decision, and than all requests for one pod take if they fail.
STUCK = 600.0

# Processor time that the changes of one MigNode may take in a burst, as when its GPUs are seen for
# the first time.
MIGNODE_BURST = 0.5

# Changes of a MigNode that took more than its share are held in the inbox at most so long.
MIGNODE_PAUSE_LONGEST = 60.0

# A change that took less processor time is not counted.
MIGNODE_FREE = 0.001

# -- A pod waits for its turn

# A pod or claim is looked at again after its write or its look failed.
FAILED_WORK = (0.05, 30.0)

# From the beginning of a sweep over the waiting pods to the beginning of the next, at the least.
SWEEP = 0.05

# A waiting pod is looked at again although nothing happened.
WAITING_POD_AGAIN = 60.0

# -- Its selectors are evaluated

# A pod has waited for the evaluation of its selectors before it is told so.
EVALUATION_TOLD = 5.0

# No selector is evaluated for a pod after its selectors took too much time.
EVALUATION_REFUSED = 60.0

# The sandbox is tried again after it failed.
EVALUATOR_AGAIN = 1.0

# Half-life of the time of the sandbox that counts as used by a namespace.
EVALUATOR_SHARE_HALVES = 10.0

# -- It is placed, or refused

# The details of a refusal are told unchanged, though others may be in the way by now; then the
# search is made anew.
REFUSAL_DETAILS = 60.0

# kube-scheduler took an allocation back: the node is left out for the pod's template.
NODE_REFUSED = (5.0, 300.0)

# The same if the node has changed since; doubled with each further refusal.
NODE_REFUSED_SHORTEST = 1.0

# Allocations that are taken back on a node within this time count as one refusal.
SAME_REFUSAL = 1.0

# A slice could not be made on a GPU: the GPU is left out, for twice as long if that happens again.
GPU_FAILED = (20.0, 600.0)

# Another driver has this long to serve a pod that we allocated. Then other pods of its template are
# tried, and held pods are told why they wait.
ANOTHER_DRIVER_SERVES = 10.0

# -- It was overtaken, and slices are held back for it

# After this wait one overtaking is enough for slices to be held back for a pod.
OVERTAKEN_ONCE = 120.0

# Slices are held back in one place at least so long before another place is looked for.
PLAN_AGAIN = 5.0

# No place is looked for again for a pod, or a pod alike, if nothing could be held back for it.
PLAN_IN_VAIN = 30.0

# Slices stay held back although nothing else becomes free.
HOLD = (50.0, 86400.0)

# -- Others are moved or ended so that it has room

# A pod has waited before others are moved for it, unless an administrator asks for that.
ROOM_WANTED = 60.0

# A request of an administrator is followed after it was last renewed; it is renewed every ten
# seconds.
ROOM_REQUEST = 45.0

# Between two looks at the pods that are to leave.
ROOM_LOOK = 2.0

# Limit from the first step of making room for a pod to the pod's allocation; longer than most pods
# may take to end.
ROOM_MADE = 600.0

# The pod that replaces a moved one has to be served within this time.
ROOM_REPLACED = 60.0

# No plan to make room is made again for a pod, or a pod alike, after none was found.
ROOM_IN_VAIN = 30.0

# No room is made for a pod after an attempt was stopped.
ROOM_AGAIN = (300.0, 3600.0)

# A refusal to end a pod by its PodDisruptionBudget is remembered; other pods are preferred.
BUDGET_REMEMBERED = 60.0

# -- It is allocated, and its node is named in a label

# Between two labels that are written right after allocations, beyond the first eight.
LABEL_AT_ONCE = 0.1

# A burst is over after so long without an allocation; then its claims are labelled.
BURST_OVER = 1.0

# Between two labels that are written after a burst.
LABEL_LATER = 0.02

# -- kube-scheduler does not bind its pod

# kube-scheduler has this long to make room by itself after it could hear of an allocation, or was
# told of another pod.
SCHEDULER_PREEMPTS = 1.0

# kube-scheduler has this long to bind a nominated pod that has room; then it is told of the pod.
NOMINATED_STUCK = 10.0

# The names of a pod's claims are written into its status again after one was lost from it.
CLAIMS_NAMED_AGAIN = (1.0, 60.0)

# kube-scheduler is told again of a pod for which others have to end.
NOMINATION_AGAIN = (30.0, 300.0)

# An allocated pod that is not bound is charged to its node: its CPU, ports and zone count as used.
CHARGED = 60.0

# Unused allocations stay on a node to which their pod cannot go.
NODE_LOST = 30.0

# A gang keeps unused slices if only some of its pods have any.
GANG_HALF = 30.0

# Such a gang is tried again after it has given its slices back.
GANG_HALF_AGAIN = (30.0, 300.0)

# Unused allocations stay with a pod that cannot run.
POD_HINDERED = 30.0

# The same while kube-scheduler makes room for the pod or waits for a volume: the default of
# ``bindTimeoutSeconds`` of its plugin VolumeBinding.
POD_BINDING = 600.0

# The same for a pod that lacks nothing. kube-scheduler looks at each refused pod again within five
# minutes (``podMaxInUnschedulablePodsDuration``).
POD_NOT_BOUND = 360.0

# Unused allocations stay with a pod while kube-scheduler may wait for their slices: a minute more
# than the default of ``bindingTimeout`` of its plugin DynamicResources.
SCHEDULER_AWAITS = 660.0

# Slices are tried again for a pod that could not use them: kube-scheduler allocates a claim of
# another driver only once ours are there.
POD_HINDERED_AGAIN = (30.0, 300.0)

# -- Kubelet cannot start its pod

# Kubelet should have asked for the claims of a pod that it has seen: many times what it takes.
PREPARE_UNASKED = (3.0, 30.0)

# Kubelet is told once more to prepare the claims of a pod.
PREPARE_AGAIN = (5.0, 80.0)

# An eviction is asked for again after it was refused, by a PodDisruptionBudget for instance.
EVICTION_AGAIN = (10.0, 300.0)

# -- It ends

# Others have this long to delete the unused claim of a pod that has ended.
OWNED_CLAIM_UNUSED = 5.0

# A claim is looked at again if it is not known yet whether its class is for this driver.
CLASS_UNKNOWN = 1.0

# -- People are told

# Between two events or log lines for one reason that differ in their details only.
SAID_DETAILS = 10.0

# A pod has waited before it gets a condition; a shorter wait is not worth a write.
CONDITION = 2.0

# Between two writes of a pod's condition that differ in the message only.
CONDITION_DETAILS = 60.0

# Between two writes of conditions of any pods.
CONDITION_GAP = 0.1

# A condition is written again after a write without an answer.
CONDITION_AGAIN = 5.0

# Conditions are tried again after the API server forbade to write one.
CONDITION_FORBIDDEN = 600.0

# -- Classes, templates and labels are kept

# A keeper rests after an unforeseen error.
KEEPER_FAILED = 60.0

# A class, template or label is written again after the write was refused.
KEEPING_AGAIN = (1.0, 60.0)

# Between two looks for unused classes or templates.
UNUSED_LOOK = 600.0

# An unused class or template stays while another waits for its room. This bounds the writes that a
# tenant can cause.
UNUSED_WHERE_FULL = 60.0

# An unused class stays, as nodes may come back.
UNUSED_CLASS = 86400.0

# An unused template stays.
UNUSED_TEMPLATE = 3600.0

# Between two looks at the files of classes of nodes.
CLASS_FILES = 10.0


def growing(pauses: tuple[float, float]) -> Backoff:
    """A backoff whose ``pauses``, the first and the longest, double from one to the other."""
    return Backoff(first=pauses[0], limit=pauses[1], jitter=0)
