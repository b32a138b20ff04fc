"""Optional program that refuses configuration that we cannot read, and makes claims of limits."""
