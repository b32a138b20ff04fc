"""Serving of pods and gangs."""
