"""Verbs on objects: create, update, apply, delete, subresources, and what follows from them."""
