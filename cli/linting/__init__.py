"""Findings in manifests that need no cluster."""
