"""Clients as people have them, and what they ask first."""
