"""The node program: prepares claims for kubelet by NVML, with a journal; publishes the MigNode."""
