"""Durations of the node program, in seconds, with the bounds that each has to keep.

All durations of the program are here. Those about a call of kubelet are in the order in which they
apply to the call.
"""

from __future__ import annotations

# -- A call of kubelet, which gives it 45 s and repeats a failed one after 60 to 90 s.

RPC_SECONDS = 38.0
"""Longest time that a call waits for its work, which then goes on. Less than kubelet's 45 s."""

START_SECONDS = 30.0
"""Longest time that a call waits until the plugin has started. Less than ``RPC_SECONDS``."""

PREPARE_SECONDS = 8.0
"""Time in which Prepare begins new attempts after errors that pass, with pauses up to
``PREPARE_PAUSE_SECONDS``. Together with one attempt and ``UNDO_SECONDS`` less than
``RPC_SECONDS``."""
PREPARE_PAUSE_SECONDS = 2.0

UNDO_SECONDS = 2.0
"""Time in which a failed Prepare tries to undo its changes. Less than ``PREPARE_SECONDS``."""

UNPREPARE_SECONDS = 8.0
"""Time in which Unprepare tries to remove a slice that is in use; the janitor tries after that."""

RETRY_SECONDS = 0.1
"""First pause after an error that passes; pauses double with each attempt."""

REMOVAL_PAUSE_SECONDS = 1.0
"""Longest pause between attempts to remove a slice. Less than ``UNDO_SECONDS``."""

BUSY_GPU_SECONDS = 0.1
"""Least time that a removal waits for a GPU on which somebody works."""

DAEMON_SECONDS = 60.0
"""Longest time that a claim waits for its MPS daemon. More than ``RPC_SECONDS``, as kubelet's next
call joins the wait."""
DAEMON_LOOK_SECONDS = 0.1
"""Pause between looks at the daemon's files during that wait."""
DAEMON_ASK_SECONDS = 2.0
"""Pause between requests to the API server for the daemon's pod during that wait."""

TIME_SLICE_SECONDS = 10.0
"""Longest run of the program that sets time slices; the GPU's lock is held meanwhile."""
TIME_SLICE_END_SECONDS = 1.0
"""Longest wait for that program to end after it was killed: it may hang in the kernel for ever."""

HEALTH_SECONDS = 10.0
"""Pause before the health of devices is sent to kubelet again. Less than 30 s, after which kubelet
takes health that is not repeated for unknown."""

# -- Slices that are made before kubelet asks.

FRESH_SECONDS = 1.0
"""Time in which a claim from the watch counts as current and is not read again. The watch also
shows a change within that time, and slices that were then made for nothing are given back."""

AWAITED_SECONDS = 8.0
"""Time in which a slice for which kube-scheduler waits is tried for. Far less than kube-scheduler's
600 s."""

EARLY_PAUSE_SECONDS = 0.05
"""Pause before a GPU or claim on which somebody works is tried again."""

EARLY_AGAIN_SECONDS = 1.0
"""Pause before a slice for which kube-scheduler waits is tried again."""

UNREADY_SECONDS = 0.5
"""Pause of early slices while the plugin starts, and least pause between two looks at them."""

FORGIVEN_SECONDS = 60.0
"""Time in which the count of slices that were made for nothing goes down by one."""

# -- Upkeep, in the background.

RECOVERY_SECONDS = 5.0
"""Longest time that the start waits for claims to be recovered before calls are served. Less than
``START_SECONDS``."""

LOOK_SECONDS = 2.0
"""Longest time that a check of a claim waits for a GPU on which somebody works; then the check is
left to the next round."""

ROUND_SECONDS = 2.0
"""Pause between rounds of the janitor; also its first pause before a removal is tried again."""
LONGEST_REMOVAL_PAUSE_SECONDS = 60.0

CHECK_SECONDS = 30.0
"""Pause between the janitor's comparisons of prepared claims with the hardware, and before kubelet
is asked again who has instances of others."""

CLAIMS_SECONDS = 300.0
"""Pause before the janitor asks the API server again for each claim of the journal."""

CLOSED_SECONDS = 0.5
"""Pause of the janitor while the plugin starts."""

LAST_REMOVALS_SECONDS = 5.0
"""Longest time that the program, at its end, waits for idle slices to be removed."""

LIST_PAUSE_SECONDS, LONGEST_LIST_PAUSE_SECONDS = 20.0, 600.0
"""First and longest pause before all claims are listed again for a lost journal: such a list is
costly."""

ASK_KUBELET_SECONDS = 5.0
"""Longest wait for kubelet's list of pods. Less than ``UNPREPARE_SECONDS``."""

# -- Layouts.

LAYOUT_GRACE_SECONDS = 2.0
"""Time from which a GPU is no longer offered until it is changed, so that the controller has heard
of it."""

GIVEN_PAUSE_SECONDS, LONGEST_GIVEN_PAUSE_SECONDS = 5.0, 300.0
"""First and longest pause before claims are listed again for a GPU that is to change."""

# -- A node that is taken over from another manager.

TAKEOVER_PAUSE_SECONDS = 30.0
"""Time for which an instance of others has to be seen unused before it is removed. Kubelet lists a
pod from its admission on, before its containers."""

# -- A claim that failed.

LISTED_SECONDS = 600.0
"""Time for which the MigNode lists a failed claim. More than the 90 s after which kubelet asks
again."""

# -- NVML. A call that changes nothing has --nvml-timeout, 10 s unless told otherwise.

NVML_CHANGE_FACTOR = 6.0
"""Factor on --nvml-timeout for calls that change something: creating and destroying take about a
second, and more on big GPUs under load."""

# -- Looks at the GPUs.

POLL_SECONDS = 10.0
"""Pause before all GPUs are looked at again. More than ``BUSY_GPU_LOOK_SECONDS``."""

REVIEW_SECONDS = 2.0
"""Pause before the health of all devices is reviewed again. Less than ``POLL_SECONDS``."""

LOOK_GATHER_SECONDS = 0.02
"""Time for which changes of GPUs, such as those of many Prepares, are gathered for one look."""

BUSY_GPU_LOOK_SECONDS = 0.1
"""Pause before a look at a GPU on which somebody works is tried again."""

XID_WAIT_SECONDS = 2.0
"""Length of one wait for a GPU's events; the watch can end only after it. Shorter waits would be
most of this program's use of CPU at rest. Reduced to half of --nvml-timeout if that is less, so
that a wait without an event does not count as a call that hangs."""

XID_AGAIN_SECONDS = 5.0
"""Pause before a failed wait for a GPU's events is tried again."""

XID_JOIN_SECONDS = 3.0
"""Longest time that the program, at its end, waits for the watches of events. More than
``XID_WAIT_SECONDS``."""

QUIET_SECONDS = 300.0
"""Time after its last XID when a GPU or slice that answers counts as healthy again."""

# -- GPUs that are lost, refuse something, or are to be changed.

REGAIN_FIRST_SECONDS, REGAIN_LONGEST_SECONDS = 30.0, 600.0
"""First and longest pause before NVML is opened anew for a lost GPU."""

REOPEN_SECONDS = 3.0
"""Longest time that running calls are waited for before NVML is opened anew for a lost GPU. New
calls wait meanwhile, but not longer than --nvml-timeout, which has to be more."""

REFUSED_FIRST_SECONDS, REFUSED_LONGEST_SECONDS = 5.0, 4 * 3600.0
"""First and longest pause before a profile that was refused is offered again. The first is less
than the 60 s after which kubelet asks again."""

MODE_FIRST_SECONDS, MODE_LONGEST_SECONDS = 10.0, 600.0
"""First and longest pause before a change of MIG mode that did not work is tried again."""

RELEASE_LOCK_SECONDS = 2.0
"""Longest time that a release of GPUs waits for the lock of each GPU."""

RELEASE_CLOSE_SECONDS = 5.0
"""Longest time that a release of GPUs waits for running calls before NVML is closed or opened anew.
Less than --nvml-timeout."""

# -- A driver that was exchanged.

MISMATCH_SECONDS = 5.0
"""Time for which library and kernel module must have different versions before this process ends:
in the middle of an upgrade they differ for a moment."""

MISMATCH_LOOK_SECONDS = 5.0
"""Longest pause between looks while only a new process may help."""

END_OVERDUE_SECONDS = 45.0
"""Time that this process has to end in order, with running calls, before liveness fails. Less than
``STOP_SECONDS``."""

# -- Publishing.

CHANGES_SECONDS = 0.05
"""Time for which changes are gathered before listeners are called: all steps of a Prepare, which
has been answered by then, and the look at its GPU. More than ``LOOK_GATHER_SECONDS``."""

STATUS_GATHER_SECONDS = 0.02
"""Time for which changes of one claim's status are gathered; only the last is written."""

STATUS_AGAIN_SECONDS = 5.0
"""Pause before a status for which kube-scheduler waits is written again, after many refusals."""

STATUS_KNOWN_SECONDS = 5.0
"""Time after a read of a claim in which its status is written without another read."""

GOING_SECONDS = 4.0
"""Time for which the placement of a slice that is being removed is not yet published as taken. The
claim's allocation accounts for it until Unprepare, which waits some seconds longer; most slices are
removed within a second."""

QUIET_SLICES_SECONDS = 1.0
"""Pause before ResourceSlices that somebody deleted are written again, as kubelet deletes them one
after another."""

FAILED_FIRST_SECONDS, FAILED_LONGEST_SECONDS = 20.0, 600.0
"""First and longest time for which slices of a GPU are not to be allocated after one could not be
made; the failure is remembered for the longest after that."""

HANDOVER_SECONDS = 2.0
"""Time that the controller is given to learn that it no longer allocates on this node."""

ANNOUNCED_SECONDS = 0.2
"""Pause between looks at the MigNode until it shows the allocator of this node."""

# -- The process.

API_SECONDS = 10.0
"""Timeout of a request to the API server. After the lookup of a claim, a call of kubelet still has
time for the hardware."""

SOCKET_SECONDS = 1.0
"""Timeout of a connection to a socket of this driver, made to see if a process listens on it."""

HEARTBEAT_SECONDS = 60.0
"""Pause after which the MigNode is written with the time alone. With ``LOOK_OVERDUE_SECONDS`` less
than ``api.mignode.SILENT_SECONDS``, from which on others take the plugin for silent."""

HEARTBEAT_CHECK_SECONDS = 5.0
"""Pause before a plugin that does not respond asks itself again whether it does."""

LOOK_OVERDUE_SECONDS = 30.0
"""Time without a look at the GPUs after which no heartbeat is written. More than two pauses of
``POLL_SECONDS``."""

PROBE_SECONDS = 4.0
"""Timeout of liveness for an answer of this program's own sockets. Less than kubelet's timeout of
the probe."""

STUCK_SECONDS = 1800.0
"""Time without a round after which a loop counts as dead. More than any round takes, even with all
GPUs hanging and no API server."""

FIRST_LOOK_SECONDS = 5.0
"""Longest time that the MigNode is not written because the first look at the GPUs is not over."""

DRAIN_SECONDS = 20.0
"""Longest time that the program, at its end, waits for running calls, and then once more for work
that goes on. Twice this is more than a call of kubelet takes."""

STOP_SECONDS = 48.0
"""Longest time that the program takes to stop. With ``FIRST_LOOK_SECONDS``, a wait that a stop does
not cut short, less than the chart's terminationGracePeriodSeconds."""
