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

HEALTH_SECONDS = 10.0
"""Health of devices is sent to kubelet again; it takes what is not repeated in 30 s for unknown."""
