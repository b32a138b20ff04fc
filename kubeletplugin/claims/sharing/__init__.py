"""Sharing of devices by several processes: time slices, MPS daemons and HAMi-core."""
