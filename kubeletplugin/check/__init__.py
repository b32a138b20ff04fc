"""A check of one node by a person: what is there, what is missing, what the driver really does.

It reads, and with ``--create`` makes and removes slices on one idle GPU. The daemon imports nothing
from here.
"""
