"""Mirrors of what the API server has."""
