"""Ends of claims: slices removed, kept for the next claim, or in use for a while."""
