"""Features of claims, allocated by the controller and bound by a real kube-scheduler."""
