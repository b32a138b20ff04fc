"""How kubelet learns of the health of devices."""
