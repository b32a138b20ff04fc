"""Ends of claims: what becomes of a claim, and the release of what it held."""
