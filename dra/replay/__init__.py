"""Decisions on record: their form, and how others would have been made of what was asked."""
