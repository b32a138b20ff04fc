"""Slices that pods ask for by limits, as for the device plugin or HAMi."""
