"""Mirrors of the API's objects, kept by list and watch."""
