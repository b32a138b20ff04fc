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
"""What failed in passing is tried again after this; the pause doubles with each attempt."""

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
