"""Overtaking among waiters: how often each was, and the room that is held back for those."""
