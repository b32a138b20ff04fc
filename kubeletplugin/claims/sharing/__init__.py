"""Sharing of devices by several processes: time slices and MPS daemons."""
