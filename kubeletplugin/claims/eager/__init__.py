"""Slices of claims that are allocated here, made before kubelet asks for them."""
