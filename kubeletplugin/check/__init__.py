"""Check of one node, run by a person: present parts, missing parts, the driver's real behaviour.

The check only reads; with ``--create`` it makes and removes slices on one idle GPU. The daemon
imports nothing from this package.
"""
