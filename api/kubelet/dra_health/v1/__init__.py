"""DRAResourceHealth v1: kubelet 1.37 and newer."""
