"""How kubelet learns of a plugin."""
