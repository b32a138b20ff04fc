"""Refusals: errors that the API answers, the causes of a 422, the syntax of names."""
