"""Basics of all packages: quantities, log lines, caches, the table of API resources."""
