"""Slices of a claim: made, undone, removed, and what is in their place."""
