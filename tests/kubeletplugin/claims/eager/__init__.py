"""Slices made before kubelet asks for them."""
