"""The node program: kubelet's gRPC, NVML, the journal, MigNode."""
