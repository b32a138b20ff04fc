"""Helpers of the controller's tests: an engine, an API server of one dictionary, and objects."""
