"""Check of one node by a person: present parts, missing parts, and the driver's real behaviour.

It reads, and with ``--create`` makes and removes slices on one idle GPU. The daemon imports nothing
from here.
"""
