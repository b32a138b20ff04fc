"""Helpers of the cases: a bare client, small objects, and fixtures for any server."""
