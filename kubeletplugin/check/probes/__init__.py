"""Programs that a check starts to see what the driver does with another process."""
