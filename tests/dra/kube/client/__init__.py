"""Requests and watches."""
