"""Pods cut down to what is read of them, which is bounded."""
