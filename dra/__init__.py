"""What both programs share: MIG geometry, devices, claims, placement, Kubernetes transport."""
