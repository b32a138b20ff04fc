"""Helpers of all tests: waiting, temporary folders, metrics as they are scraped, counted ranks."""
