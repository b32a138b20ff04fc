"""Manifests linted and converted."""
