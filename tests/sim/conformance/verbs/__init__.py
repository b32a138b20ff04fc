"""Verbs: what each does to objects of any kind."""
