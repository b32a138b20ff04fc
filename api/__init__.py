"""What others see: opaque configuration, the MigNode resource, kubelet's plugin protocols."""
