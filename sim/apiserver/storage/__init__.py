"""Storage: records and their history, watches on it, selection."""
