"""Libraries of the driver: where they lie, and where loaders look for them."""
