"""The explanation why a pod's claims wait: answers of nodes and GPUs, and the event about them."""
