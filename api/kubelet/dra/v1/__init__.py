"""DRAPlugin v1: kubelet 1.34 and newer."""
