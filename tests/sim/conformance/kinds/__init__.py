"""Kinds of objects: which fields of them are refused, and which filled in."""
