"""Diagnosis of an installation from the cluster's objects: possible faults and their signs."""
