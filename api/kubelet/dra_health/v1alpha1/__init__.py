"""DRAResourceHealth v1alpha1: kubelet before 1.37."""
