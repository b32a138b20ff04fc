"""PodResources v1: kubelet 1.34 and newer list devices of claims, too."""
