"""DRAPlugin v1beta1: kubelet before 1.34."""
