"""What both programs share: MIG geometry, devices, claims, placement scores, Kubernetes transport."""
