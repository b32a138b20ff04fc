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

# From the start of leadership to the word that something cannot be listed, and between two.
MIRRORS_MISSING_TOLD = 10.0

# A fence's claims that keep failing (by a webhook, say) hold up others, all together.
FENCE_OF_PODS = 10.0

# A fence waits for claims that no living pod names, all together.
FENCE_OF_OTHERS = 1.0

# The loop waits for changes when nothing is due.
IDLE = 60.0

# A leader that has not begun a turn is dead: far longer than any decision, and than any number of
# requests for one pod that fail.
STUCK = 600.0

# Processor time that changes of one MigNode take at once, as where GPUs are seen for the first
# time.
MIGNODE_BURST = 0.5

# A MigNode that took more than its share is held in the inbox.
MIGNODE_PAUSE_LONGEST = 60.0

# Processor time of a change that is not counted.
MIGNODE_FREE = 0.001

# -- A pod waits for its turn

# A pod or claim whose write, or whose look, failed.
FAILED_WORK = (0.05, 30.0)

# From the beginning of a sweep over those that wait to that of the next, at the least.
SWEEP = 0.05

# A pod that waits is looked at although nothing happened.
WAITING_POD_AGAIN = 60.0

# -- Its selectors are evaluated

# A pod that waits for its selectors is told so.
EVALUATION_TOLD = 5.0

# Nothing more is asked for a pod whose selectors took too much.
EVALUATION_REFUSED = 60.0

# The sandbox is tried again that failed.
EVALUATOR_AGAIN = 1.0

# Half of the sandbox's time that a namespace has used is forgotten.
EVALUATOR_SHARE_HALVES = 10.0

# -- It is placed, or refused

# The details of a refusal are told, whoever is in the way by now; then it is searched anew.
REFUSAL_DETAILS = 60.0

# kube-scheduler took an allocation back: the node is left out for the pod's template.
NODE_REFUSED = (5.0, 300.0)

# The same where the node has changed since, doubled with each further refusal.
NODE_REFUSED_SHORTEST = 1.0

# Allocations that are taken back on a node count as one refusal.
SAME_REFUSAL = 1.0

# Another driver serves a pod that we allocated; then pods alike are tried, and those held told.
ANOTHER_DRIVER_SERVES = 10.0

# -- It was overtaken, and slices are held back for it

# A pod has waited so long that a single overtaking is enough.
OVERTAKEN_ONCE = 120.0

# Slices are held back in one place before another is looked for.
PLAN_AGAIN = 5.0

# A pod and its equals are skipped for which nothing can be held back.
PLAN_IN_VAIN = 30.0

# Slices are held back although nothing else becomes free.
HOLD = (50.0, 86400.0)

# -- Others are moved or ended so that it has room

# It waits before others are moved for it, unless an administrator asks for that.
ROOM_WANTED = 60.0

# A request of an administrator stays that is not renewed, which is done every ten seconds.
ROOM_REQUEST = 45.0

# Between two looks at those who are to leave.
ROOM_LOOK = 2.0

# All that is done for one pod, from the first who leaves to its own allocation; longer than most
# pods may take to end.
ROOM_MADE = 600.0

# The pod that takes the place of one that was moved is served.
ROOM_REPLACED = 60.0

# Nobody is looked for again whose leaving would make room for a pod and its equals.
ROOM_IN_VAIN = 30.0

# A pod is left alone for which room was not made.
ROOM_AGAIN = (300.0, 3600.0)

# A budget forbids to end a pod: those of others are preferred.
BUDGET_REMEMBERED = 60.0

# -- Its slice is made before it is allocated

# A node makes what is reserved, queued behind others on its GPUs.
RESERVED_ANSWER = 30.0

# A node gives back by itself what nobody allocates, as no leader is at work.
RESERVED_ON_NODE = 120

# What a former leader reserved stays, for its pod to be looked at.
RESERVED_BY_OTHERS = 20.0

# The reservation of an allocated claim stays, so that another write takes it along; but it goes
# not before the allocation is stored, for which half as long is waited.
RESERVED_LINGERS = 5.0

# A write of reservations waits for more while pods are decided.
RESERVED_GATHERS = 0.02

# A write of reservations that failed.
RESERVING_AGAIN = (0.05, 5.0)

# -- It is allocated, and its node is named in a label

# Between two labels that are written along with allocations, after the first eight.
LABEL_AT_ONCE = 0.1

# Without an allocation a burst is over, and the claims of it are labelled.
BURST_OVER = 1.0

# Between two labels that are written after a burst.
LABEL_LATER = 0.02

# -- kube-scheduler does not bind its pod

# kube-scheduler makes room by itself if it has heard of the allocation, or was told of another.
SCHEDULER_PREEMPTS = 1.0

# kube-scheduler binds a nominated pod that has room; then it is told of that.
NOMINATED_STUCK = 10.0

# A pod's status is told again which claims it has, after one of their names was lost from it.
CLAIMS_NAMED_AGAIN = (1.0, 60.0)

# kube-scheduler is told again of a pod for which others have to end.
NOMINATION_AGAIN = (30.0, 300.0)

# A pod that nobody binds keeps others from its CPU, ports and zone.
CHARGED = 60.0

# Unused allocations stay on a node where their pod cannot go.
NODE_LOST = 30.0

# A gang has slices for some of its pods only, which it does not use.
GANG_HALF = 30.0

# The same gang is tried again.
GANG_HALF_AGAIN = (30.0, 300.0)

# Unused allocations stay with a pod that cannot run.
POD_HINDERED = 30.0

# The same where kube-scheduler makes room or waits for a volume: ``bindTimeoutSeconds`` of its
# plugin VolumeBinding, unless configured.
POD_BINDING = 600.0

# The same with a pod that lacks nothing. kube-scheduler looks at each pod within five minutes
# again, whatever it was refused for (``podMaxInUnschedulablePodsDuration``).
POD_NOT_BOUND = 360.0

# Slices are tried again for a pod that could not use them: kube-scheduler allocates a claim of
# another driver only once ours are there.
POD_HINDERED_AGAIN = (30.0, 300.0)

# -- Kubelet cannot start its pod

# Kubelet is told once more to prepare the claims of a pod.
PREPARE_AGAIN = (5.0, 80.0)

# Eviction is asked for again that was refused, by a budget for instance.
EVICTION_AGAIN = (10.0, 300.0)

# -- It ends

# An unused claim of a pod that has ended is deleted with it, by others.
OWNED_CLAIM_UNUSED = 5.0

# A claim is looked at again of whose class it is not known yet whose it is.
CLASS_UNKNOWN = 1.0

# -- People are told

# The details of a reason stand before others are said.
SAID_DETAILS = 10.0

# A pod has waited before it gets a condition: less is not worth a write.
CONDITION = 2.0

# The details of a condition stand before others are written.
CONDITION_DETAILS = 60.0

# Between two conditions, of whatever pods.
CONDITION_GAP = 0.1

# A condition is written again that had no answer.
CONDITION_AGAIN = 5.0

# Conditions are tried again that may not be written.
CONDITION_FORBIDDEN = 600.0

# -- Classes, templates and labels are kept

# A keeper rests that failed in a way nobody foresaw.
KEEPER_FAILED = 60.0

# A class, template or label is written again that was refused.
KEEPING_AGAIN = (1.0, 60.0)

# Between two looks for unused classes or templates.
UNUSED_LOOK = 600.0

# An unused class or template stays where another waits for its room: so many writes a minute a
# tenant causes.
UNUSED_WHERE_FULL = 60.0

# An unused class stays, as nodes come back.
UNUSED_CLASS = 86400.0

# An unused template stays.
UNUSED_TEMPLATE = 3600.0

# Between two looks at the files of classes of nodes.
CLASS_FILES = 10.0


def growing(pauses: tuple[float, float]) -> Backoff:
    """The first and the longest of some pauses as a value for the record of what is tried again."""
    return Backoff(first=pauses[0], limit=pauses[1], jitter=0)


# -- Decisions are recorded

# Changes of nodes are recorded without a decision: so exact is the end of a claim.
DECISION_LOG_STATE = 1.0

# Lines are written together.
DECISION_LOG_WRITES = 0.2

# A recording begins anew after lines were lost: its state may take a tenth of a second.
DECISION_LOG_AGAIN = 60.0

# Lines that are queued are written at the end of a leadership.
DECISION_LOG_CLOSES = 2.0
