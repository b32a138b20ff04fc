"""Handbook as a whole: its links, its commands, its manifests."""
