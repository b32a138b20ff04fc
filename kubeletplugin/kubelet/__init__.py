"""Calls of kubelet: the plugin's services, registration and health."""
