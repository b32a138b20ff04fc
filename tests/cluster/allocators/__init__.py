"""Allocators beside or in place of the controller."""
