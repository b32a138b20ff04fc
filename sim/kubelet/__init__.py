"""Stand-in for kubelet's part in DRA on one node, without containers.

Registration, claims, pod status and deletion follow pkg/kubelet of Kubernetes 1.36 (pluginmanager,
cm/dra, pod_workers). Containers do not run: what a runtime would give them is computed from the CDI
specs and kept as a file.
"""
