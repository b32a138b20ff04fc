"""Helpers of the plugin's tests: a node with simulated GPUs, and one GPU alone."""
