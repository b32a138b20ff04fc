"""Stand-in for kube-controller-manager's resourceclaim controller, as of Kubernetes 1.36."""
