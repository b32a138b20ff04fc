"""Requests of claims: what is wanted, with its alternatives and constraints."""
