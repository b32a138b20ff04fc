"""Daemon: the program as a process, its update, and the driver's exchange under it."""
