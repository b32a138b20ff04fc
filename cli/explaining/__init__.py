"""Why a claim waits or where it sits, worked out from the cluster's objects alone."""
