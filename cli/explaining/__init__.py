"""Explanations of why a claim waits or where it sits, from the cluster's objects alone."""
