"""Kubelet's PodResources service: what each pod of the node holds."""
