"""Reports: metrics, events and conditions."""
