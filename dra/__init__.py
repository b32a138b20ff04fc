"""Code of both programs: MIG geometry, devices, claims, placement, Kubernetes transport."""
