"""Webhook: its answers and its certificates."""
