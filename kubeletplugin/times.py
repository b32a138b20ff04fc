"""Durations of the node program, in seconds: who waits for what, and what that has to be below.

A duration stands here and nowhere else; a call of kubelet meets those of its chapter in this order.
"""

from __future__ import annotations

# -- A call of kubelet, which gives it 45 s and repeats a failed one after 60 to 90 s.

RPC_SECONDS = 38.0
"""A call waits for its work, which goes on after it. Less than kubelet's 45 s."""

START_SECONDS = 30.0
"""A call waits for a plugin that starts. Less than ``RPC_SECONDS``."""

PREPARE_SECONDS = 8.0
"""Prepare goes on trying what fails in passing, with pauses up to ``PREPARE_PAUSE_SECONDS``. With
one more attempt and ``UNDO_SECONDS`` less than ``RPC_SECONDS``."""
PREPARE_PAUSE_SECONDS = 2.0

UNDO_SECONDS = 2.0
"""Prepare goes on trying to undo what it made. Less than ``PREPARE_SECONDS``."""

UNPREPARE_SECONDS = 8.0
"""Unprepare goes on trying to remove a slice that is in use; then it goes on in the background."""

RETRY_SECONDS = 0.1
"""Pause before what failed in passing is tried again; it doubles with each attempt."""

REMOVAL_PAUSE_SECONDS = 1.0
"""Longest pause between attempts to remove a slice. Less than ``UNDO_SECONDS``."""

BUSY_GPU_SECONDS = 0.1
"""A removal waits at least this for a GPU on which somebody works."""

DAEMON_SECONDS = 60.0
"""A claim waits for its MPS daemon. More than ``RPC_SECONDS``: kubelet's next call joins it."""
DAEMON_LOOK_SECONDS = 0.1
DAEMON_ASK_SECONDS = 2.0
"""Meanwhile the daemon's files are looked at, and the API server is asked for its pod."""

TIME_SLICE_SECONDS = 10.0
"""The program that sets time slices may take this long, with the GPU's lock held."""
TIME_SLICE_END_SECONDS = 1.0
"""It is waited for after it was killed: in the kernel it may hang for ever."""

HEALTH_SECONDS = 10.0
"""Health of devices is sent to kubelet again; it takes what is not repeated in 30 s for unknown."""

# -- Slices that are made before kubelet asks.

FRESH_SECONDS = 1.0
"""A claim that the watch has shown is not read again. A change in that time is shown too, and what
was made for nothing is given back."""

RESERVED_SECONDS = 0.5
"""A reserved slice is tried for; the controller tries another GPU after it."""

AWAITED_SECONDS = 8.0
"""A slice for which kube-scheduler waits is tried for. Less than its 600 s by far."""

EARLY_PAUSE_SECONDS = 0.05
"""A GPU or claim on which somebody works is tried again."""

EARLY_AGAIN_SECONDS = 1.0
"""A slice for which kube-scheduler waits is tried again."""

UNREADY_SECONDS = 0.5
"""Early slices wait for a plugin that starts, and are looked at at most so often."""

OVERDUE_SECONDS = 0.5
"""Kubelet may take so long to ask for whole slices: many times what it takes where nothing is busy.
A pod that waits for other things takes longer, and its kubelet is told once for nothing."""

LONGEST_OVERDUE_SECONDS = 10.0
"""The same while kubelet goes on asking for other claims, and may still come to this one."""

FORGIVEN_SECONDS = 60.0
"""One slice that was made for nothing counts no more."""

# -- Upkeep, in the background.

RECOVERY_SECONDS = 5.0
"""A start waits for claims to be recovered before calls are served. Less than ``START_SECONDS``."""

LOOK_SECONDS = 2.0
"""A check of a claim waits for a GPU on which somebody works; then it is left for the next."""

ROUND_SECONDS = 2.0
"""The janitor looks for what is due; also its first pause before a slice is removed again."""
LONGEST_REMOVAL_PAUSE_SECONDS = 60.0

CHECK_SECONDS = 30.0
"""The janitor compares prepared claims with the hardware."""

CLAIMS_SECONDS = 300.0
"""The janitor asks the API server for each claim of the journal."""

CLOSED_SECONDS = 0.5
"""The janitor waits for a plugin that starts."""

LAST_REMOVALS_SECONDS = 5.0
"""At its end the program waits for idle slices to be removed."""

LIST_PAUSE_SECONDS, LONGEST_LIST_PAUSE_SECONDS = 20.0, 600.0
"""Claims are listed again for a lost journal, at growing pauses: a list is dear."""

# -- Layouts.

LAYOUT_GRACE_SECONDS = 2.0
"""A GPU that is to change is offered no more for this, so that the controller has heard of it."""

GIVEN_PAUSE_SECONDS, LONGEST_GIVEN_PAUSE_SECONDS = 5.0, 300.0
"""Claims are listed again for a GPU that is to change, at growing pauses."""

# -- A claim that failed.

LISTED_SECONDS = 600.0
"""The MigNode lists a failed claim. More than the 90 s after which kubelet asks again."""

# -- NVML. A call that changes nothing has --nvml-timeout, 10 s unless told otherwise.

NVML_CHANGE_FACTOR = 6.0
"""A call that changes something has so many times as long: creating and destroying take about a
second, and more on big GPUs under load."""

# -- Looks at the GPUs.

POLL_SECONDS = 10.0
"""All GPUs are looked at again. More than ``BUSY_GPU_LOOK_SECONDS``."""

REVIEW_SECONDS = 2.0
"""The health of all devices is gone through again. Less than ``POLL_SECONDS``."""

LOOK_GATHER_SECONDS = 0.02
"""Changes of one GPU, such as a burst of Prepares makes, are seen by one look."""

BUSY_GPU_LOOK_SECONDS = 0.1
"""A look waits for a GPU on which somebody works."""

XID_WAIT_SECONDS = 2.0
"""One wait for a GPU's events, after which the watch may end. Short ones cost a node at rest most
of its CPU. At most half of --nvml-timeout, so that waiting for nothing is no call that hangs."""

XID_AGAIN_SECONDS = 5.0
"""Events of a GPU that could not be waited for are waited for again."""

XID_JOIN_SECONDS = 3.0
"""The end of the program waits for the watches of events. More than ``XID_WAIT_SECONDS``."""

QUIET_SECONDS = 300.0
"""A GPU or slice that answers counts as healthy again so long after its last XID."""

# -- GPUs that are lost, refuse something, or are to be changed.

REGAIN_FIRST_SECONDS, REGAIN_LONGEST_SECONDS = 30.0, 600.0
"""Pauses, ever longer, before NVML is opened anew for a lost GPU."""

REOPEN_SECONDS = 3.0
"""For that, running calls of other GPUs are waited for, while new calls wait too. Less than
--nvml-timeout, for which these wait."""

REFUSED_FIRST_SECONDS, REFUSED_LONGEST_SECONDS = 5.0, 4 * 3600.0
"""Pauses before a profile is offered again that could not be delivered. The first is less than the
60 s after which kubelet asks again."""

MODE_FIRST_SECONDS, MODE_LONGEST_SECONDS = 10.0, 600.0
"""Pauses before a change of MIG mode that did not work is tried again."""

RELEASE_LOCK_SECONDS = 2.0
"""A release of GPUs waits for each of their locks, and gives up."""

RELEASE_CLOSE_SECONDS = 5.0
"""It waits for running calls before NVML is closed or opened anew. Less than --nvml-timeout."""

# -- A driver that was exchanged.

MISMATCH_SECONDS = 5.0
"""A library of another version than the kernel module is no moment in the middle of an upgrade."""

MISMATCH_LOOK_SECONDS = 5.0
"""Longest pause between looks while only a new process may help."""

END_OVERDUE_SECONDS = 45.0
"""The process may take so long to end in order, with calls that run; then liveness fails. Less than
``STOP_SECONDS``."""

# -- Publishing.

CHANGES_SECONDS = 0.05
"""Changes are told of together: the steps of a Prepare, which is answered by then, and what the
look at its GPU has shown. More than ``LOOK_GATHER_SECONDS``."""

STATUS_GATHER_SECONDS = 0.02
"""Wishes of one claim's status are written as one, the last."""

STATUS_FIRST_SECONDS = 0.2
"""First pause before a claim's status that was not written is written again."""

STATUS_AGAIN_SECONDS = 5.0
"""Pause of one for which kube-scheduler waits, once the server has refused it again and again."""

STATUS_KNOWN_SECONDS = 5.0
"""A claim that was just read is not read again to be written to."""

GOING_SECONDS = 4.0
"""A slice may take so long to go before its place is published as taken. Its claim's allocation
accounts for it until Unprepare, which waits some seconds longer; most are gone within a second."""

QUIET_SLICES_SECONDS = 1.0
"""Kubelet deletes ResourceSlices one after another: they are written again once it is through."""

GATE_FIRST_SECONDS, GATE_LONGEST_SECONDS = 600.0, 4 * 3600.0
"""Pauses before a feature gate is asked for again: it changes with the API server's restart."""

HANDOVER_SECONDS = 2.0
"""The controller hears within this that it does not allocate here any more."""

ANNOUNCED_SECONDS = 0.2
"""The MigNode is looked at again until it says so."""

# -- The process.

API_SECONDS = 10.0
"""A request to the API server. With it the claim's lookup leaves room for the hardware within a
call of kubelet."""

SOCKET_SECONDS = 1.0
"""A socket of this driver's is connected to, to see whether anybody listens."""

PROBE_SECONDS = 4.0
"""Liveness waits for an answer of the own sockets. Less than kubelet gives the probe."""

STUCK_SECONDS = 1800.0
"""A loop without a round is dead: more than any round takes, with every GPU hanging and no API
server."""

FIRST_LOOK_SECONDS = 5.0
"""The first look at the GPUs may take so long before the MigNode is written."""

DRAIN_SECONDS = 20.0
"""The end waits for running calls, and again for work that goes on. Twice this is more than a call
of kubelet takes."""

STOP_SECONDS = 48.0
"""Longest stop. With ``FIRST_LOOK_SECONDS``, which no stop ends, less than the chart gives the pod
(terminationGracePeriodSeconds), which is killed after that."""
