"""Pods that stand in the way of each other: preemption, and nodes held back for who waits."""
