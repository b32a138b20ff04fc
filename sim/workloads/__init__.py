"""Stand-in for kube-controller-manager: the pods of Deployments, StatefulSets, DaemonSets, Jobs."""
