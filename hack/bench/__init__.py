"""Benchmarks: figures are ratios within one run."""
