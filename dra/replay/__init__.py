"""Recorded decisions: their form, and replays under other policies or on other GPUs."""
