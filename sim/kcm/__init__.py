"""What kube-controller-manager's resourceclaim controller does, as of Kubernetes 1.36."""
