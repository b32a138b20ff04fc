"""Scheduling of pods whose claims the controller allocates."""
