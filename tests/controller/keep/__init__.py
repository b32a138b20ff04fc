"""Keeping of classes, labels and templates."""
