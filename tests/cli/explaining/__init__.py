"""Explanations why a pod waits."""
