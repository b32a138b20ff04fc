"""The trying half of a check: slices that are made, looked at and removed."""
