"""Reports: events, conditions, metrics."""
